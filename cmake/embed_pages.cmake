# Writes the files of a folder into one C++ source, for metrics/pages/template.h:
#   cmake -DFOLDER=metrics/pages -DOUT=page_files.cc -P embed_pages.cmake
# In HTML and SVG a line break beside a tag, a section or a part stands for nothing, with the spaces
# around it; elsewhere it is a space. Scripts and styles stay as they are.
file(GLOB files RELATIVE "${FOLDER}" "${FOLDER}/*.html" "${FOLDER}/*.svg" "${FOLDER}/*.css" "${FOLDER}/*.js")
list(SORT files)
set(rows "")
foreach(file IN LISTS files)
  file(READ "${FOLDER}/${file}" text)
  if(file MATCHES "html$|svg$")
    string(STRIP "${text}" text)
    string(REGEX REPLACE "(>|{{[#/^>][^}]*}})\n *" "\\1" text "${text}")
    string(REGEX REPLACE "\n *(<|{{[#/>^])" "\\1" text "${text}")
    string(REGEX REPLACE "\n *" " " text "${text}")
  endif()
  string(APPEND rows "    {\"${file}\", R\"page(${text})page\"},\n")
endforeach()
file(WRITE "${OUT}" "#include \"metrics/pages/template.h\"

namespace cox::metrics {
namespace {

constexpr PageFile kFiles[] = {
${rows}};

}  // namespace

std::span<const PageFile> page_files() {
  return kFiles;
}

}  // namespace cox::metrics
")
