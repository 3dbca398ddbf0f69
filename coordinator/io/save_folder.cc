#include "coordinator/io/save_folder.h"

#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <map>
#include <optional>
#include <system_error>
#include <tuple>

#include "coordinator/core/text.h"
#include "coordinator/io/content_hash.h"
#include "coordinator/io/file.h"
#include "coordinator/io/json.h"
#include "coordinator/io/json_fields.h"
#include "coordinator/io/safetensors_header.h"
#include "coordinator/io/training_position.h"

namespace cox::io {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kFormat = "coxswain-save";
constexpr std::string_view kTensors = ".safetensors";
constexpr std::string_view kPrefix = "step-";  // followed by the step in 12 digits or more
// About 250 bytes a tensor. A safetensors file has at most 2^18 tensors, and a save has four files
// of such size: model, optimizer, master weights and average.
constexpr std::size_t kMaxManifestBytes = std::size_t{256} << 20;
constexpr std::size_t kMaxPieces = std::size_t{1} << 20;
constexpr std::size_t kMaxFiles = 65'536;
constexpr std::size_t kMaxDimensions = 64;
constexpr std::uint64_t kMaxWhole = std::uint64_t{1} << 53;  // held exactly by a double of JSON
constexpr std::string_view kSealStart = ",\n  \"hash\": \"";
constexpr std::string_view kSealEnd = "\"\n}\n";

void write_file(JsonWriter& json, const SaveFile& file) {
  json.new_line(4).begin_object().field("name", file.name).field("bytes", file.bytes);
  json.field("hash", to_hex(file.hash)).end_object();
}

void write_piece(JsonWriter& json, const SavePiece& piece) {
  json.new_line(4).begin_object().field("tensor", piece.tensor).field("dtype", piece.dtype);
  json.key("shape").begin_array();
  for (const std::int64_t size : piece.shape) json.value(size);
  json.end_array().field("first", piece.first).field("count", piece.count);
  json.field("file", piece.file).field("offset", piece.offset).field("bytes", piece.bytes);
  json.field("hash", to_hex(piece.hash)).end_object();
}

// Returns the text before the seal, without the bracket that ends the object.
Result<std::string_view> unsealed(std::string_view text) {
  const Status torn = data_loss(
      "expected the manifest to end with its hash, found another end; the file is cut off or was "
      "edited");
  if (!text.ends_with(kSealEnd)) return torn;
  const std::size_t seal = text.rfind(kSealStart);
  if (seal == std::string_view::npos) return torn;
  std::string_view hash = text.substr(seal + kSealStart.size());
  if (hash.size() < kSealEnd.size()) return torn;  // both contain the quote
  hash.remove_suffix(kSealEnd.size());
  const Result<std::uint64_t> expected = hash_from_hex(hash);
  if (!expected.ok()) return expected.status();
  const std::string_view body = text.substr(0, seal);
  if (content_hash(body) == *expected) return body;
  return data_loss("the manifest's text does not match its own hash, ", hash);
}

std::uint64_t hash_field(JsonFields& fields, const Json& object, const std::string& where) {
  const Result<std::uint64_t> hash = hash_from_hex(fields.text(object, "hash", where));
  if (!hash.ok()) fields.fail(concat(where, ": ", hash.status().message()));
  return hash.ok() ? *hash : 0;
}

std::uint64_t whole(JsonFields& fields, const Json& object, const char* name,
                    const std::string& where) {
  return static_cast<std::uint64_t>(fields.integer(object, name, kMaxWhole, where));
}

bool is_plain_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == name.npos &&
         name.find('\0') == name.npos;
}

SaveFile read_file_entry(JsonFields& fields, const Json& entry, const std::string& where) {
  SaveFile file{fields.text(entry, "name", where), whole(fields, entry, "bytes", where),
                hash_field(fields, entry, where)};
  if (fields.ok() && !is_plain_name(file.name))
    fields.fail(
        concat(where, ": expected the name of a file in the save, found \"", file.name, "\""));
  return file;
}

SavePiece read_piece(JsonFields& fields, const Json& entry, const std::string& where) {
  SavePiece piece;
  piece.tensor = fields.text(entry, "tensor", where);
  piece.dtype = fields.text(entry, "dtype", where);
  for (const Json& size : fields.items(entry, "shape", 0, kMaxDimensions, where))
    piece.shape.push_back(fields.integer(size, kMaxWhole, where));
  piece.first = whole(fields, entry, "first", where);
  piece.count = whole(fields, entry, "count", where);
  piece.file = fields.text(entry, "file", where);
  piece.offset = whole(fields, entry, "offset", where);
  piece.bytes = whole(fields, entry, "bytes", where);
  piece.hash = hash_field(fields, entry, where);
  return piece;
}

// Returns the number of elements of a tensor with the shape. Returns nothing above 2^63.
std::optional<std::uint64_t> elements_of(const std::vector<std::int64_t>& shape) {
  std::uint64_t elements = 1;
  for (const std::int64_t size : shape) {
    if (__builtin_mul_overflow(elements, static_cast<std::uint64_t>(size), &elements) ||
        elements > INT64_MAX) {
      return std::nullopt;
    }
  }
  return elements;
}

// Checks that the numbers of a piece agree: the run lies in the tensor, and the bytes match the
// elements.
Status check_piece(const SavePiece& piece) {
  const auto dtype = std::ranges::find(kSafetensorsDtypes, piece.dtype, &SafetensorsDtype::name);
  const std::string who = concat("tensor \"", piece.tensor, "\": ");
  if (dtype == kSafetensorsDtypes.end())
    return data_loss(who, "expected a dtype of safetensors, found \"", piece.dtype, "\"");
  const auto elements = elements_of(piece.shape);
  if (!elements || piece.first > *elements || piece.count > *elements - piece.first)
    return data_loss(who, "expected elements within the tensor's shape, found ", piece.count,
                     " from ", piece.first, " on");
  if (piece.bytes == piece.count * dtype->bytes) return ok_status();
  return data_loss(who, "expected ", dtype->bytes, " bytes for each of ", piece.count,
                   " elements, found ", piece.bytes);
}

// Checks that no byte of a file belongs to two pieces.
Status check_apart(const std::vector<SavePiece>& pieces) {
  std::vector<const SavePiece*> sorted;
  for (const SavePiece& piece : pieces) {
    if (piece.bytes > 0) sorted.push_back(&piece);
  }
  std::ranges::sort(sorted, [](const SavePiece* a, const SavePiece* b) {
    return std::tie(a->file, a->offset) < std::tie(b->file, b->offset);
  });
  for (std::size_t i = 1; i < sorted.size(); ++i) {
    const SavePiece& before = *sorted[i - 1];
    const SavePiece& piece = *sorted[i];
    if (before.file == piece.file && before.offset + before.bytes > piece.offset)
      return data_loss("tensors \"", before.tensor, "\" and \"", piece.tensor,
                       "\": expected bytes of their own in ", piece.file, ", found an overlap");
  }
  return ok_status();
}

// Checks that names are unique, and that every piece lies within a listed file.
Status check_places(const SaveManifest& manifest) {
  std::map<std::string_view, std::uint64_t> size_of;
  std::uint64_t all = 0;
  for (const SaveFile& file : manifest.files) {
    if (!size_of.emplace(file.name, file.bytes).second)
      return data_loss("file ", file.name, " is listed twice");
    all += file.bytes;
    if (all > kMaxWhole) return data_loss("expected files of at most 2^53 bytes, found more");
  }
  for (const SavePiece& piece : manifest.pieces) {
    const auto file = size_of.find(piece.file);
    const bool is_inside = file != size_of.end() && piece.offset <= file->second &&
                           piece.bytes <= file->second - piece.offset;
    if (!is_inside)
      return data_loss("tensor \"", piece.tensor,
                       "\": expected bytes within a file of the save, found ", piece.bytes, " at ",
                       piece.offset, " of \"", piece.file, "\"");
    if (Status fits = check_piece(piece); !fits.ok()) return fits;
  }
  return check_apart(manifest.pieces);
}

// `fields` holds the first error of the pieces, which were read before.
Result<SaveManifest> read_members(const Json& root, std::vector<SavePiece> pieces,
                                  JsonFields fields) {
  SaveManifest manifest;
  manifest.pieces = std::move(pieces);
  fields.items(root, "pieces", 0, 0, "manifest");  // required, even if streamed
  manifest.id = fields.text(root, "id", "manifest");
  manifest.step = whole(fields, root, "step", "manifest");
  manifest.incarnation =
      static_cast<std::uint32_t>(fields.integer(root, "incarnation", UINT32_MAX, "manifest"));
  manifest.world_size =
      static_cast<std::int32_t>(fields.integer(root, "world_size", kMaxRanks, "manifest"));
  manifest.writer = fields.text(root, "writer", "manifest");
  manifest.written = UnixTime{fields.number(root, "written", "manifest")};
  for (const Json& entry : fields.items(root, "files", 1, kMaxFiles, "manifest"))
    manifest.files.push_back(read_file_entry(fields, entry, "files"));
  if (!fields.ok()) return fields.status();
  if (Status places = check_places(manifest); !places.ok()) return places;
  return manifest;
}

Status check_version(const Json& root) {
  JsonFields fields(StatusCode::data_loss);
  const std::string format = fields.text(root, "format", "manifest");
  const std::int64_t version = fields.integer(root, "version", 1'000'000, "manifest");
  if (!fields.ok()) return fields.status();
  if (format != kFormat)
    return data_loss("expected format \"", kFormat, "\", found \"", format, "\"");
  if (version >= 1 && version <= kManifestVersion) return ok_status();
  return failed_precondition("expected version 1 to ", kManifestVersion, ", found ", version,
                             "; resume it with the version of Coxswain that wrote it");
}

Status verify_file(const fs::path& save, const SaveFile& file) {
  const Result<FileContent> content = content_of(save / file.name);
  // An error of this machine (descriptors, permission) is no evidence against the save.
  if (content.status().code() == StatusCode::not_found)
    return data_loss(content.status().message());
  if (!content.ok()) return content.status();
  if (content->bytes != file.bytes)
    return data_loss((save / file.name).string(), ": expected ", file.bytes, " bytes, found ",
                     content->bytes);
  if (content->hash == file.hash) return ok_status();
  return data_loss((save / file.name).string(), ": expected content of hash ", to_hex(file.hash),
                   ", found ", to_hex(content->hash),
                   "; the file is damaged or belongs to another save");
}

Status verify_piece(const fs::path& save, const SavePiece& piece) {
  const Result<InputFile> file = InputFile::open(save / piece.file);
  if (!file.ok()) return file.status();
  std::vector<std::byte> bytes(piece.bytes);
  if (Status read = file->read_at(piece.offset, bytes.data(), bytes.size()); !read.ok())
    return read;
  if (content_hash(bytes) == piece.hash) return ok_status();
  return data_loss(save.string(), ": tensor \"", piece.tensor, "\" in ", piece.file,
                   ": the bytes do not match the hash in the manifest; the file is damaged");
}

// Returns the tensors in a file of a save, as pieces without hashes. Checks the file's step.
Result<std::vector<SavePiece>> pieces_in(const InputFile& file, const std::string& name,
                                         std::uint64_t step) {
  const auto opened = read_safetensors_header(file);
  if (!opened.ok()) return opened.status();
  if (Status place = check_place(opened->header.metadata, step); !place.ok()) return place;
  std::vector<SavePiece> pieces;
  for (const SafetensorsEntry& entry : opened->header.entries)
    pieces.push_back(piece_of(entry, name, opened->data_offset));
  return pieces;
}

Status add_pieces(const fs::path& path, SaveManifest& manifest) {
  const Result<InputFile> file = InputFile::open(path);
  if (!file.ok()) return file.status();
  auto pieces = pieces_in(*file, path.filename().string(), manifest.step);
  if (!pieces.ok()) return pieces.status();
  for (SavePiece& piece : *pieces) {
    std::vector<std::byte> bytes(piece.bytes);
    if (Status read = file->read_at(piece.offset, bytes.data(), bytes.size()); !read.ok())
      return read;
    piece.hash = content_hash(bytes);
    manifest.pieces.push_back(std::move(piece));
  }
  return ok_status();
}

auto place_in_save(const SavePiece& piece) {
  return std::tie(piece.file, piece.offset, piece.bytes, piece.tensor, piece.dtype, piece.shape,
                  piece.first, piece.count);
}

bool is_earlier(const SavePiece& a, const SavePiece& b) {
  return place_in_save(a) < place_in_save(b);
}

// Checks that the manifest agrees with the header of a file of tensors.
Status verify_tensors(const fs::path& path, const SaveManifest& manifest) {
  const Result<InputFile> file = InputFile::open(path);
  if (!file.ok()) return file.status();
  auto found = pieces_in(*file, path.filename().string(), manifest.step);
  if (!found.ok()) return found.status().with_context(path.string());
  return check_tensors(path, std::move(*found), manifest);
}

// FolderMark shows whether a name still leads to the same folder with the same entries.
struct FolderMark {
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  std::int64_t changed_s = 0;
  std::int64_t changed_ns = 0;
  friend bool operator==(const FolderMark&, const FolderMark&) = default;
};

// Returns nothing if the folder does not exist.
std::optional<FolderMark> mark_of(const fs::path& folder) {
  struct stat found {};
  if (::stat(folder.c_str(), &found) != 0) return std::nullopt;
  return FolderMark{found.st_dev, found.st_ino, found.st_ctim.tv_sec, found.st_ctim.tv_nsec};
}

}  // namespace

std::string whole_name(std::string_view file) {
  constexpr std::string_view kNumbers = "-00000-of-00000";
  std::string_view stem = file;
  if (!stem.ends_with(kTensors)) return std::string(file);
  stem.remove_suffix(kTensors.size());
  if (stem.size() <= kNumbers.size()) return std::string(file);
  const std::string_view end = stem.substr(stem.size() - kNumbers.size());
  const bool is_numbered = std::ranges::equal(end, kNumbers, [](char found, char form) {
    return form == '0' ? found >= '0' && found <= '9' : found == form;
  });
  if (!is_numbered) return std::string(file);
  return concat(stem.substr(0, stem.size() - kNumbers.size()), kTensors);
}

SavePiece piece_of(const SafetensorsEntry& entry, std::string file, std::uint64_t data_offset) {
  SavePiece piece{.tensor = entry.name, .dtype = std::string(entry.dtype), .shape = entry.shape};
  piece.count = 1;
  for (const std::int64_t size : entry.shape) piece.count *= static_cast<std::uint64_t>(size);
  piece.file = std::move(file);
  piece.offset = data_offset + entry.begin;
  piece.bytes = entry.end - entry.begin;
  return piece;
}

std::string save_id(std::uint64_t high, std::uint64_t low) {
  return to_hex(high) + to_hex(low);
}

std::string to_json(const SaveManifest& manifest) {
  JsonWriter json;
  json.begin_object().new_line(2).field("format", kFormat);
  json.new_line(2).field("version", kManifestVersion);
  json.new_line(2).field("id", manifest.id).new_line(2).field("step", manifest.step);
  json.new_line(2).field("incarnation", manifest.incarnation);
  json.new_line(2).field("world_size", manifest.world_size);
  json.new_line(2).field("writer", manifest.writer);
  json.new_line(2).field("written", manifest.written.seconds);
  json.new_line(2).key("files").begin_array();
  for (const SaveFile& file : manifest.files) write_file(json, file);
  json.end_array().new_line(2).key("pieces").begin_array();
  for (const SavePiece& piece : manifest.pieces) write_piece(json, piece);
  const std::string body = json.end_array().take();
  return concat(body, kSealStart, to_hex(content_hash(body)), kSealEnd);
}

Result<SaveManifest> parse_manifest(std::string_view text) {
  const Result<std::string_view> body = unsealed(text);
  if (!body.ok()) return body.status();
  JsonFields fields(StatusCode::data_loss);
  std::vector<SavePiece> pieces;
  const auto take = [&](const Json& entry) {
    if (pieces.size() >= kMaxPieces)
      return data_loss("expected at most ", kMaxPieces, " pieces, found more");
    if (fields.ok()) pieces.push_back(read_piece(fields, entry, "pieces"));
    return ok_status();
  };
  const Result<Json> root = parse_json(text, kMaxManifestBytes, {"pieces", take});
  if (!root.ok()) return root.status();
  if (Status version = check_version(*root); !version.ok()) return version;
  return read_members(*root, std::move(pieces), std::move(fields));
}

Status describe_files(const fs::path& save, SaveManifest& manifest) {
  const auto step = step_of_save(save);
  if (!step)
    return invalid_argument(save.string(),
                            ": expected a folder with a name such as step-000000000100");
  manifest.step = *step;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(save, error)) {
    const std::string name = entry.path().filename().string();
    if (name == kManifestName) continue;
    if (!is_utf8(name))
      return invalid_argument(save.string(), ": expected file names in UTF-8, found \"",
                              valid_utf8(name), "\"; rename or remove that file");
    const Result<FileContent> content = content_of(entry.path());
    if (!content.ok()) return content.status();
    manifest.files.push_back({name, content->bytes, content->hash});
    if (!name.ends_with(kTensors)) continue;
    if (Status pieces = add_pieces(entry.path(), manifest); !pieces.ok())
      return pieces.with_context(entry.path().string());
  }
  std::ranges::sort(manifest.files, {}, &SaveFile::name);
  if (error || manifest.files.empty())
    return not_found(save.string(), ": expected a save, found no files in it");
  return ok_status();
}

std::string save_name(std::uint64_t step) {
  return concat("step-", zero_padded(step, 12));
}

std::optional<std::uint64_t> step_of_save(const fs::path& folder) {
  const std::string name = folder.filename().string();
  if (!name.starts_with(kPrefix)) return std::nullopt;
  std::uint64_t step = 0;
  std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), step);
  return save_name(step) == name ? std::optional(step) : std::nullopt;
}

std::vector<fs::path> saves_in(const fs::path& directory) {
  std::vector<fs::path> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    if (step_of_save(entry.path())) found.push_back(entry.path());
  }
  std::ranges::sort(found, {}, step_of_save);
  return found;
}

Result<SaveManifest> read_manifest(const fs::path& save, std::string_view name) {
  const fs::path path = save / name;
  const Result<std::string> text = read_file(path, kMaxManifestBytes);
  if (text.status().code() == StatusCode::not_found)
    return data_loss(save.string(), ": expected ", name,
                     ", found none; the save is damaged, or is of version 0.2 or earlier: `cox "
                     "checkpoint seal` converts these");
  if (!text.ok()) return text.status();
  Result<SaveManifest> manifest = parse_manifest(*text);
  if (!manifest.ok()) return manifest.status().with_context(path.string());
  return manifest;
}

Status write_manifest(const fs::path& save, const SaveManifest& manifest, std::string_view name) {
  const std::string text = to_json(manifest);
  if (const auto again = parse_manifest(text); !again.ok())
    return again.status().with_context("its manifest");
  return replace_file(save / name, text);
}

std::string part_manifest_name(std::size_t rank, std::size_t ranks) {
  return concat("part-", zero_padded(rank + 1, 5), "-of-", zero_padded(ranks, 5), ".json");
}

Result<SaveManifest> verify_save(const fs::path& save, VerifyDepth depth) {
  Result<SaveManifest> manifest = read_manifest(save);
  if (!manifest.ok()) return manifest;
  if (step_of_save(save) != manifest->step)
    return data_loss(save.string(),
                     ": expected the step in the folder's name, found a save of step ",
                     manifest->step, "; the folder was renamed or copied: restore its name");
  for (const SaveFile& file : manifest->files) {
    Status whole = verify_file(save, file);
    if (whole.ok() && file.name.ends_with(kTensors))
      whole = verify_tensors(save / file.name, *manifest);
    if (!whole.ok()) return whole;
  }
  if (depth == VerifyDepth::files) return manifest;
  for (const SavePiece& piece : manifest->pieces) {
    if (Status whole = verify_piece(save, piece); !whole.ok()) return whole;
  }
  return manifest;
}

// A folder that is replaced, or loses a file, gets another change time.
Result<SaveManifest> verify_listed_save(const fs::path& save, VerifyDepth depth) {
  while (true) {
    const std::optional<FolderMark> before = mark_of(save);
    Result<SaveManifest> manifest = verify_save(save, depth);
    if (manifest.ok()) return manifest;
    const std::optional<FolderMark> after = mark_of(save);
    if (!after) return not_found(save.string(), ": the save was removed while it was read");
    if (before == after) return manifest;
  }
}

Status check_tensors(const fs::path& path, std::vector<SavePiece> found,
                     const SaveManifest& manifest) {
  const std::string name = path.filename().string();
  std::vector<SavePiece> listed;
  std::ranges::copy_if(manifest.pieces, std::back_inserter(listed),
                       [&](const SavePiece& piece) { return piece.file == name; });
  std::ranges::sort(found, is_earlier);
  std::ranges::sort(listed, is_earlier);
  const bool is_same = std::ranges::equal(found, listed, {}, place_in_save, place_in_save);
  return is_same
             ? ok_status()
             : data_loss(path.string(),
                         ": expected the tensors that the manifest lists, found different ones");
}

std::string id_of_save(const fs::path& save) {
  const auto manifest = read_manifest(save);
  return manifest.ok() ? manifest->id : std::string();
}

}  // namespace cox::io
