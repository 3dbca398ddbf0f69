#include "sdk/src/session/identity.h"

#include <elf.h>
#include <link.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <span>
#include <string_view>

#include "coordinator/core/hash.h"
#include "coordinator/core/words.h"

namespace cox::detail {
namespace {

template <std::size_t Size>
void copy_to(std::array<char, Size>& field, std::string_view text) {
  text.copy(field.data(), Size - 1);
}

template <std::size_t Size>
std::string text_of(const std::array<char, Size>& field) {
  return shown({field.data(), strnlen(field.data(), Size)});
}

std::string program_name() {
  std::array<char, 4096> path{};
  const ssize_t size = readlink("/proc/self/exe", path.data(), path.size());
  const std::string_view whole(path.data(), static_cast<std::size_t>(std::max<ssize_t>(size, 0)));
  return std::string(whole.substr(whole.rfind('/') + 1));
}

std::string hex(const unsigned char* bytes, std::size_t size) {
  std::string text;
  for (std::size_t i = 0; i < size; ++i) {
    text += "0123456789abcdef"[bytes[i] >> 4];
    text += "0123456789abcdef"[bytes[i] & 15];
  }
  return text;
}

// Returns the linker's build id from one segment of notes, which the loader mapped.
std::string build_in(const char* at, std::size_t size) {
  const auto whole = [](std::size_t bytes) { return (bytes + 3) / 4 * 4; };
  while (size >= sizeof(ElfW(Nhdr))) {
    ElfW(Nhdr) note;
    std::memcpy(&note, at, sizeof note);
    const std::size_t description = sizeof note + whole(note.n_namesz);
    const std::size_t next = description + whole(note.n_descsz);
    if (next > size) break;
    if (note.n_type == NT_GNU_BUILD_ID)
      return hex(reinterpret_cast<const unsigned char*>(at + description), note.n_descsz);
    at += next;
    size -= next;
  }
  return {};
}

// Stops at the first object, which is the program itself.
int find_build(dl_phdr_info* object, std::size_t, void* into) {
  auto& build = *static_cast<std::string*>(into);
  for (int i = 0; i < object->dlpi_phnum && build.empty(); ++i) {
    const ElfW(Phdr)& segment = object->dlpi_phdr[i];
    if (segment.p_type != PT_NOTE) continue;
    const auto* at = reinterpret_cast<const char*>(object->dlpi_addr + segment.p_vaddr);
    build = build_in(at, segment.p_memsz);
  }
  return 1;
}

std::string program_build() {
  std::string build;
  dl_iterate_phdr(find_build, &build);
  return build;
}

}  // namespace

Identity own_identity(OtherPrograms others, const std::vector<std::string>& arguments) {
  std::string text;
  for (const std::string& argument : arguments) text.append(argument).push_back('\0');
  Identity identity;
  identity.arguments = crc32(std::as_bytes(std::span(text)));
  identity.others = others;
  copy_to(identity.program, program_name());
  copy_to(identity.build, program_build());
  return identity;
}

Compared compare(const std::vector<Identity>& ranks) {
  Compared compared;
  const Identity& root = ranks.front();
  const auto refuses = [](const Identity& each) { return each.others != OtherPrograms::allow; };
  const bool is_refusing = std::ranges::any_of(ranks, refuses);
  for (std::size_t rank = 1; rank < ranks.size() && compared.status.ok(); ++rank) {
    const Identity& other = ranks[rank];
    if (other.magic != root.magic || other.protocol != root.protocol) {
      compared.status = failed_precondition(
          "expected Coxswain's SDK of one protocol on all ranks, found protocol ", root.protocol,
          " on rank 0 and ", other.protocol, " on rank ", rank,
          "; build all ranks against the same version");
    } else if (is_refusing && text_of(other.program) != text_of(root.program)) {
      compared.status = failed_precondition(
          "expected the same program on all ranks, found ", text_of(root.program),
          " on rank 0 and ", text_of(other.program), " on rank ", rank,
          "; run.allow_other_programs=on lets programs of other names take part");
    }
  }
  const auto first_other = [&](auto of) {
    const auto other = std::ranges::find_if(ranks, [&](const Identity& each) {
      return std::invoke(of, each) != std::invoke(of, root);
    });
    return static_cast<std::size_t>(other - ranks.begin());
  };
  if (const auto rank = first_other(&Identity::build); rank < ranks.size()) {
    compared.warnings.push_back(concat(
        "rank ", rank, " runs another build of ", text_of(ranks[rank].program), " than rank 0 (",
        text_of(ranks[rank].build), ", ", text_of(root.build), "); results are of mixed builds"));
  }
  if (const auto rank = first_other(&Identity::arguments); rank < ranks.size()) {
    compared.warnings.push_back(
        concat("rank ", rank, " has different arguments from rank 0; arguments that change the ",
               "model, such as heads and dropout, must be equal on all ranks"));
  }
  return compared;
}

}  // namespace cox::detail
