#include "metrics/pages/template.h"

#include <string>
#include <utility>
#include <vector>

#include "tests/metrics/text_search.h"

#include <doctest/doctest.h>

using namespace cox;
using namespace cox::metrics;

namespace {

Result<Templates> parsed(std::string_view page, std::string_view part = "") {
  const PageFile files[] = {{"page.html", page}, {"part.html", part}};
  return Templates::parse(files);
}

std::string rendered(std::string_view page, const Record& values, std::string_view part = "") {
  const Result<Templates> templates = parsed(page, part);
  REQUIRE_MESSAGE(templates.ok(), templates.status().text());
  std::string out;
  templates->render("page.html", values, out);
  return out;
}

struct Case {
  const char* page;
  const char* value;
  const char* shown;
};

}  // namespace

TEST_SUITE("metrics.pages") {
  TEST_CASE("a hostile value is escaped for its place") {
    for (const auto& [page, value, shown] : {
             Case{"<p>{{v}}</p>", "<script>alert('x')</script> & \"y\"",
                  "<p>&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt; &amp; &quot;y&quot;</p>"},
             Case{"<p>{{v}}</p>", "{{name}}", "<p>{{name}}</p>"},
             Case{"<p>{{v}}</p>",
                  "a\x01\n\xff"
                  "b",
                  "<p>a  \xEF\xBF\xBD"
                  "b</p>"},
             Case{"<p title=\"{{v}}\">", "\" onload=\"x", "<p title=\"&quot; onload=&quot;x\">"},
             Case{"<p title='{{v}}'>", "' onload='x", "<p title='&#39; onload=&#39;x'>"},
             Case{"<a href=\"{{v}}\">", "javascript:alert(1)", "<a href=\"#\">"},
             Case{"<a href=\"{{v}}\">", "JaVaScRiPt:alert(1)", "<a href=\"#\">"},
             Case{"<a href=\"{{v}}\">", " javascript:alert(1)", "<a href=\"#\">"},
             Case{"<a href=\"{{v}}\">", "java\nscript:alert(1)", "<a href=\"#\">"},
             Case{"<a href=\"{{v}}\">", "data:text/html,x", "<a href=\"#\">"},
             Case{"<a href=\"{{v}}\">", ":x", "<a href=\"#\">"},
             Case{"<a href=\"{{v}}\">", "https://a/b?c=d&e=\"",
                  "<a href=\"https://a/b?c=d&amp;e=&quot;\">"},
             Case{"<a href=\"{{v}}\">", "/status?at=1:2", "<a href=\"/status?at=1:2\">"},
             Case{"<img src=\"/{{v}}\"/>", "vbscript:x", "<img src=\"/#\"/>"},
             Case{"<form action=\"{{v}}\">", "javascript:x", "<form action=\"#\">"},
             Case{"<use xlink:href=\"{{v}}\"/>", "data:x", "<use xlink:href=\"#\"/>"},
             Case{"<i style=\"width:{{v}}%\">", "12.5", "<i style=\"width:12.5%\">"},
             Case{"<i style=\"width:{{v}}%\">", "1;background:url(//x)", "<i style=\"width:0%\">"},
             Case{"<i style=\"width:{{v}}%\">", "NaN", "<i style=\"width:0%\">"},
         }) {
      CAPTURE(page);
      CHECK(rendered(page, {{"v", value}}) == shown);
    }
  }

  TEST_CASE("markup stands as it is between tags, and nowhere else") {
    const auto markup = [] { return Markup{"<b>1</b>"}; };
    CHECK(rendered("<p>{{v}}</p>", {{"v", markup()}}) == "<p><b>1</b></p>");
    for (const std::string page :
         {"<p title=\"{{v}}\">", "<a href=\"{{v}}\">", "<i style=\"{{v}}\">"}) {
      CAPTURE(page);
      CHECK_FALSE(contains(rendered(page, {{"v", markup()}}), "<b>"));
    }
  }

  TEST_CASE("a value has no place in scripts, styles, handlers, tags and bare attributes") {
    for (const std::string page :
         {"<script>{{v}}</script>", "<script src=\"x\">{{v}}</script>", "<style>{{v}}</style>",
          "<p onclick=\"{{v}}\">", "<iframe srcdoc=\"{{v}}\">", "<p {{v}}>", "<{{v}}>",
          "<p id={{v}}>", "<p id=a>", "<!-- {{v}} -->", "<p\"{{v}}\">"}) {
      CAPTURE(page);
      CHECK_FALSE(parsed(page).ok());
    }
    CHECK(parsed("<script>x</script><p>{{v}}</p>").ok());
  }

  TEST_CASE("a template that does not close is refused, with its name") {
    for (const std::string page :
         {"{{#a}}", "{{#a}}{{/b}}", "{{/a}}", "{{#a}}{{#b}}{{/a}}{{/b}}", "{{a", "{{}}", "{{#}}",
          "<p", "<p title=\"x", "<script>x", "{{#a}}<p{{/a}}>", "{{#a}}<p title=\"{{/a}}\">",
          "{{>none.html}}", "{{>page.html}}", "<p title=\"{{>open.html}}\">"}) {
      CAPTURE(page);
      const Result<Templates> templates = parsed(page);
      REQUIRE_FALSE(templates.ok());
      CHECK(contains(templates.status().text(), "page.html: "));
    }
    CHECK_FALSE(parsed("{{>part.html}}", "{{>page.html}}").ok());
    CHECK_FALSE(parsed("<p>{{>part.html}}</p>", "<b").ok());
  }

  TEST_CASE("a section stands once a record, or where its value is there") {
    const char* page = "{{#v}}[{{x}}]{{/v}}{{^v}}none{{/v}}";
    CHECK(rendered(page, {{"x", 0}, {"v", List{{{"x", 1}}, {{"x", 2}}}}}) == "[1][2]");
    CHECK(rendered(page, {{"x", 0}, {"v", Record{{"y", 1}}}}) == "[0]");  // of the record around it
    CHECK(rendered(page, {{"x", 0}, {"v", true}}) == "[0]");
    CHECK(rendered(page, {{"x", 0}, {"v", "text"}}) == "[0]");
    CHECK(rendered(page, {{"x", 0}, {"v", Markup{"<b/>"}}}) == "[0]");
    for (Value nothing : {Value(List()), Value(false), Value(""), Value(Markup())})
      CHECK(rendered(page, {{"x", 0}, {"v", std::move(nothing)}}) == "none");
  }

  TEST_CASE("a part is escaped for the place where it stands") {
    CHECK(rendered("<p>{{>part.html}}</p>", {{"v", "<"}}, "<b title=\"{{v}}\">{{v}}</b>") ==
          "<p><b title=\"&lt;\">&lt;</b></p>");
    const PageFile files[] = {{"page.html", "<script>{{>a.js}}</script>{{v}}"},
                              {"a.js", "if (1 < 2) f('</b>');"}};
    const Result<Templates> templates = Templates::parse(files);
    REQUIRE(templates.ok());
    std::string out;
    templates->render("page.html", {{"v", "<"}}, out);
    CHECK(out == "<script>if (1 < 2) f('</b>');</script>&lt;");
  }

  TEST_CASE("a name that is not given shows") {
    CHECK(rendered("<p>{{v}}</p>{{#w}}x{{/w}}{{^w}}y{{/w}}", {}) == "<p>{{v}}</p>{{w}}{{w}}");
  }
}
