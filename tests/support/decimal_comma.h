// DecimalComma makes this process format numbers as in German, "1.234,5", during its lifetime.
// Always sets the C++ global locale. Sets the C locale, too, if the system has one with a decimal
// comma, or can make one with localedef.
#pragma once

#include <stdlib.h>

#include <clocale>
#include <filesystem>
#include <fstream>
#include <locale>
#include <string>

namespace cox::test {

class CommaFacet : public std::numpunct<char> {
 protected:
  char do_decimal_point() const override { return ','; }
  char do_thousands_sep() const override { return '.'; }
  std::string do_grouping() const override { return "\3"; }
};

class DecimalComma {
 public:
  DecimalComma()
      : streams_(std::locale::global(std::locale(std::locale::classic(), new CommaFacet))),
        before_(std::setlocale(LC_ALL, nullptr)) {
    has_c_locale_ = set_c_locale() || (make_locale() && set_c_locale());
  }
  ~DecimalComma() {
    std::setlocale(LC_ALL, before_.c_str());
    std::locale::global(streams_);
    if (made_.empty()) return;
    ::unsetenv("LOCPATH");
    std::error_code ignored;
    std::filesystem::remove_all(made_, ignored);
  }
  DecimalComma(const DecimalComma&) = delete;
  DecimalComma& operator=(const DecimalComma&) = delete;

  // Returns false if only the C++ streams write commas.
  bool has_c_locale() const { return has_c_locale_; }

 private:
  static bool set_c_locale() {
    for (const char* name : {"de_DE.UTF-8", "de_DE.utf8", "de_DE"}) {
      if (std::setlocale(LC_ALL, name) != nullptr) return true;
    }
    return false;
  }
  bool make_locale() {
    std::string folder = (std::filesystem::temp_directory_path() / "cox-locale-XXXXXX").string();
    if (::mkdtemp(folder.data()) == nullptr) return false;
    made_ = folder;
    std::ofstream(made_ / "source") << "LC_NUMERIC\ndecimal_point \"<U002C>\"\n"
                                       "thousands_sep \"<U002E>\"\ngrouping 3;3\nEND LC_NUMERIC\n"
                                       "LC_CTYPE\ncopy \"POSIX\"\nEND LC_CTYPE\n";
    const std::string command = "localedef -c -i '" + folder + "/source' -f ANSI_X3.4-1968 '" +
                                folder + "/de_DE' >/dev/null 2>&1";
    static_cast<void>(std::system(command.c_str()));  // warnings count as a failure there
    return ::setenv("LOCPATH", folder.c_str(), 1) == 0;
  }

  std::locale streams_;
  std::string before_;
  std::filesystem::path made_;
  bool has_c_locale_ = false;
};

}  // namespace cox::test
