#include "sdk/src/checkpoint/save_layout.h"

#include <torch/torch.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <tuple>
#include <utility>

#include "coordinator/core/text.h"
#include "coordinator/io/save_folder.h"

namespace cox::detail {
namespace {

constexpr std::string_view kTied = "coxswain.tied.";
constexpr std::string_view kTensors = ".safetensors";

struct Sized {
  std::size_t kind = 0;
  std::size_t place = 0;
  std::uint64_t bytes = 0;
};

// Returns all shared tensors, the largest first.
std::vector<Sized> by_size(const Checkpoint& shared) {
  std::vector<Sized> all;
  for (std::size_t kind = 0; kind < kSaveKinds.size(); ++kind) {
    const auto& tensors = shared.*kSaveKinds[kind].tensors;
    for (std::size_t i = 0; i < tensors.size(); ++i)
      all.push_back({kind, i, static_cast<std::uint64_t>(tensors[i].tensor.nbytes())});
  }
  std::ranges::stable_sort(all, std::ranges::greater(), &Sized::bytes);
  return all;
}

// RankLoad is the work of a rank so far.
struct RankLoad {
  std::uint64_t bytes = 0;
  std::uint64_t pace = 1;
};

std::size_t least_loaded(const std::vector<RankLoad>& loads, std::uint64_t more) {
  __extension__ using Wide = unsigned __int128;
  const auto is_sooner = [more](const RankLoad& a, const RankLoad& b) {
    if (a.pace == 0 || b.pace == 0) return a.pace > b.pace;
    return Wide{a.bytes + more} * b.pace < Wide{b.bytes + more} * a.pace;
  };
  return static_cast<std::size_t>(std::ranges::min_element(loads, is_sooner) - loads.begin());
}

std::vector<RankLoad> loads_of(std::span<const std::uint32_t> paces) {
  const bool are_alike = std::ranges::all_of(paces, [](std::uint32_t pace) { return pace == 0; });
  std::vector<RankLoad> loads;
  for (const std::uint32_t pace : paces) loads.push_back({0, are_alike ? 1u : pace});
  return loads;
}

std::vector<std::size_t> writers_of(const SaveLayout::Kind& kind, OwnTensors own, bool is_optional,
                                    std::size_t ranks) {
  std::vector<std::size_t> writers = kind.owner;
  if (own == OwnTensors::of_root) writers.push_back(0);
  for (std::size_t r = 0; own == OwnTensors::of_every_rank && r < ranks; ++r) writers.push_back(r);
  if (writers.empty() && !is_optional) writers.push_back(0);
  std::ranges::sort(writers);
  writers.erase(std::ranges::unique(writers).begin(), writers.end());
  return writers;
}

// Two names of one parameter have the same bytes in the same form.
auto place_of(const at::Tensor& tensor) {
  return std::tuple(tensor.const_data_ptr(), tensor.scalar_type(), tensor.sizes().vec(),
                    tensor.strides().vec());
}

io::Metadata metadata_of(const Checkpoint& shared, std::size_t kind) {
  if (kind != kModelKind) return io::describe_step(shared.position.step);
  io::Metadata metadata = io::describe(shared.position);
  for (const auto& [name, kept] : shared.tied) metadata[concat(kTied, name)] = kept;
  return metadata;
}

}  // namespace

SaveLayout lay_out(const Checkpoint& shared, const OwnTensorsOfKinds& own,
                   std::span<const std::uint32_t> paces) {
  SaveLayout layout;
  for (std::size_t kind = 0; kind < kSaveKinds.size(); ++kind)
    layout.kinds[kind].owner.resize((shared.*kSaveKinds[kind].tensors).size());
  std::vector<RankLoad> loads = loads_of(paces);
  for (const Sized& each : by_size(shared)) {
    const std::size_t rank = least_loaded(loads, each.bytes);
    loads[rank].bytes += each.bytes;
    layout.kinds[each.kind].owner[each.place] = rank;
  }
  for (std::size_t kind = 0; kind < kSaveKinds.size(); ++kind) {
    SaveLayout::Kind& laid = layout.kinds[kind];
    laid.writers = writers_of(laid, own[kind], kSaveKinds[kind].is_optional, paces.size());
  }
  return layout;
}

std::string file_name(const SaveLayout& layout, std::size_t kind, std::size_t rank) {
  const auto& writers = layout.kinds[kind].writers;
  const char* name = kSaveKinds[kind].name;
  if (writers.size() == 1) return concat(name, kTensors);
  const auto number = std::ranges::lower_bound(writers, rank) - writers.begin() + 1;
  return concat(name, "-", zero_padded(static_cast<std::size_t>(number), 5), "-of-",
                zero_padded(writers.size(), 5), kTensors);
}

std::size_t kind_of_file(std::string_view name) {
  const std::string whole = io::whole_name(name);
  const auto found = std::ranges::find_if(
      kSaveKinds, [&](const SaveKind& kind) { return whole == concat(kind.name, kTensors); });
  return static_cast<std::size_t>(found - kSaveKinds.begin());
}

std::vector<PartFile> part_of(const Checkpoint& shared, const Checkpoint& own,
                              const SaveLayout& layout, std::size_t rank) {
  std::vector<PartFile> files;
  for (std::size_t kind = 0; kind < kSaveKinds.size(); ++kind) {
    const SaveLayout::Kind& laid = layout.kinds[kind];
    if (!std::ranges::binary_search(laid.writers, rank)) continue;
    const auto tensors = kSaveKinds[kind].tensors;
    PartFile file{file_name(layout, kind, rank), own.*tensors, metadata_of(shared, kind)};
    for (std::size_t i = 0; i < laid.owner.size(); ++i) {
      if (laid.owner[i] == rank) file.tensors.push_back((shared.*tensors)[i]);
    }
    files.push_back(std::move(file));
  }
  return files;
}

std::vector<FileTensor> places_of(const Checkpoint& shared, const SaveLayout& layout) {
  std::vector<FileTensor> places;
  for (std::size_t kind = 0; kind < kSaveKinds.size(); ++kind) {
    const auto& tensors = shared.*kSaveKinds[kind].tensors;
    for (std::size_t i = 0; i < tensors.size(); ++i)
      places.push_back({file_name(layout, kind, layout.kinds[kind].owner[i]), tensors[i].name});
  }
  return places;
}

void separate_tied(Checkpoint& state) {
  std::map<decltype(place_of(at::Tensor())), std::string> first;
  std::erase_if(state.model, [&](const NamedTensor& each) {
    if (each.tensor.nbytes() == 0) return false;
    const auto [seen, is_new] = first.emplace(place_of(each.tensor), each.name);
    if (!is_new) state.tied[each.name] = seen->second;
    return !is_new;
  });
}

Status join_tied(const io::Metadata& metadata, std::vector<NamedTensor>& model) {
  std::map<std::string_view, at::Tensor> known;
  for (const NamedTensor& each : model) known.emplace(each.name, each.tensor);
  std::vector<NamedTensor> joined;
  for (const auto& [key, kept] : metadata) {
    if (!key.starts_with(kTied)) continue;
    const auto found = known.find(kept);
    const std::string name = key.substr(kTied.size());
    if (found == known.end() || known.contains(name))
      return data_loss("tensor \"", name, "\": expected the tensor to be \"", kept,
                       "\" under another name, found no such tensor, or a separate one");
    joined.push_back({name, found->second});
  }
  std::ranges::move(joined, std::back_inserter(model));
  return ok_status();
}

}  // namespace cox::detail
