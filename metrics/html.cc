#include "metrics/html.h"

#include "coordinator/core/text.h"
#include "metrics/page_style.h"

namespace cox::metrics {

std::string escape(std::string_view text) {
  std::string out;
  for (const char c : valid_utf8(text)) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return out;
}

std::string html_document(std::string_view title, int refresh_seconds, std::string_view body) {
  std::string out = "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>";
  out += "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>";
  out += "<meta name=\"color-scheme\" content=\"light dark\"/>";
  if (refresh_seconds > 0)
    out += "<meta http-equiv=\"refresh\" content=\"" + std::to_string(refresh_seconds) + "\"/>";
  out += "<title>" + escape(title) + "</title>";
  out +=
      "<link rel=\"icon\" href=\"data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' "
      "viewBox='0 0 16 16'%3E%3Cpath d='M2 14 9 7' stroke='%230b6b8a' stroke-width='2'/%3E"
      "%3Cellipse cx='11.5' cy='4.5' rx='2' ry='4' transform='rotate(45 11.5 4.5)' "
      "fill='%230b6b8a'/%3E%3C/svg%3E\"/>";
  out += "<style>";
  out += page_style();
  out += "</style></head>\n<body>";
  out += body;
  out += "</body></html>\n";
  return out;
}

std::string index_page(const Served& served) {
  std::string body =
      "<main class=\"page narrow\"><header class=\"top\"><div class=\"line\">" +
      std::string(page_mark()) + "<h1>" + escape(served.snapshot->job->name) +
      "</h1></div><p class=\"meta\">Coxswain " + escape(served.build.version) + ", rank 0 of " +
      std::to_string(served.snapshot->job->world_size) +
      ". All pages are read-only.</p></header><section class=\"card\"><dl class=\"links\">";
  for (const Endpoint& endpoint : endpoints()) {
    body += "<dt><a href=\"" + endpoint.path + "\">" + endpoint.path + "</a></dt><dd>" +
            escape(endpoint.help) + "</dd>";
  }
  return html_document("Coxswain: " + served.snapshot->job->name, 0,
                       body + "</dl></section></main>");
}

}  // namespace cox::metrics
