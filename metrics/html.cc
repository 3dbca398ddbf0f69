#include "metrics/html.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "coordinator/core/text.h"

namespace cox::metrics {
namespace {

constexpr std::string_view kStyle = R"css(
:root{color-scheme:light dark;
--bg:#f4f6f7;--card:#ffffff;--ink:#182026;--soft:#55616b;--line:#dde3e7;--faint:#eef1f3;
--accent:#0b6b8a;--good:#1d6b41;--good-bg:#e4f3ea;--warn:#8a5200;--warn-bg:#fcf0d9;
--bad:#a02318;--bad-bg:#fce8e6;--calm-bg:#e9eef1;
--p0:#c47f2c;--p1:#5aa0cf;--p2:#2b6ca3;--p3:#3f8fa5;--p4:#8d74b8;--p5:#4d9c6c;--p6:#a9b3bb;--p7:#6f7b85;
--h0:#7fb3d9;--h1:#e6ebee;--h2:#f2cf8f;--h3:#e39a3f;--h4:#b85a16;--h5:#6b2504;
--q0:#dfe5e9;--q1:#bfe0e6;--q2:#f3dcae;--q3:#dccdf0;--hatch:rgba(24,32,38,.10);--stripe:rgba(255,255,255,.62)}
@media (prefers-color-scheme:dark){:root{
--bg:#0f1418;--card:#171e24;--ink:#e4e9ec;--soft:#9dabb6;--line:#2a343c;--faint:#1e272e;
--accent:#5fbadb;--good:#7fd3a2;--good-bg:#173527;--warn:#efbd6b;--warn-bg:#3a2c12;
--bad:#ff9d92;--bad-bg:#42201d;--calm-bg:#232d35;
--p0:#d39a52;--p1:#6fb1dc;--p2:#4383bb;--p3:#4fa3b8;--p4:#a48cd0;--p5:#62b583;--p6:#75818b;--p7:#98a4ad;
--h0:#2f6ea3;--h1:#28323a;--h2:#6d5324;--h3:#b07a2c;--h4:#eaa64a;--h5:#ffe0a8;
--q0:#2b363e;--q1:#1f4b55;--q2:#574319;--q3:#453661;--hatch:rgba(255,255,255,.11);--stripe:rgba(15,20,24,.62)}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--ink);font:14px/1.45 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;font-variant-numeric:tabular-nums;-webkit-text-size-adjust:100%}
.page{max-width:1240px;margin:0 auto;padding:20px 20px 28px;display:grid;gap:14px;grid-template-columns:minmax(0,1fr)}
.narrow{max-width:760px}.live{display:contents}
a:focus-visible,summary:focus-visible,button:focus-visible,input:focus-visible{outline:2px solid var(--accent);outline-offset:2px;border-radius:3px}
.ask{display:flex;flex-wrap:wrap;gap:6px;align-items:center;margin-top:10px;font-size:13px;color:var(--soft)}
.ask input,.ask button{font:inherit;color:var(--ink);background:var(--card);border:1px solid var(--line);border-radius:6px;padding:3px 8px}.ask input{width:84px}
a{color:var(--accent);text-underline-offset:2px}
h1{font-size:21px;line-height:1.2;margin:0;font-weight:650;letter-spacing:-.01em;overflow-wrap:anywhere}
h2{font-size:14px;margin:0;font-weight:650}
h2+.hint{margin-top:1px}
p{margin:0}
.hint,.meta{color:var(--soft);font-size:13px}
.top .line{display:flex;flex-wrap:wrap;align-items:center;gap:10px}
.top .meta{margin-top:5px}
.mark{width:26px;height:26px;flex:none;color:var(--accent)}
.card{background:var(--card);border:1px solid var(--line);border-radius:9px;padding:14px 16px;min-width:0}
.tag{display:inline-block;font-size:12px;line-height:1;font-weight:600;padding:4px 7px;border-radius:5px;background:var(--calm-bg);color:var(--soft);white-space:nowrap}
.tag.good{background:var(--good-bg);color:var(--good)}
.tag.warn{background:var(--warn-bg);color:var(--warn)}
.tag.bad{background:var(--bad-bg);color:var(--bad)}
.note{border-radius:9px;padding:10px 14px;font-weight:550;background:var(--warn-bg);color:var(--warn)}
.note.calm{background:var(--calm-bg);color:var(--ink)}
.note.bad{background:var(--bad-bg);color:var(--bad)}
.tiles{display:grid;grid-template-columns:repeat(4,minmax(0,1fr));gap:14px}
.tile{padding:12px 16px 13px;display:flex;flex-direction:column}
.tile h2{font-size:13px;font-weight:550;color:var(--soft)}
.tile .big{font-size:25px;line-height:1.25;font-weight:620;letter-spacing:-.02em;margin-top:1px}
.tile .big small{font-size:13px;font-weight:500;letter-spacing:0;color:var(--soft);margin-left:4px}
.tile .hint{min-height:1.45em;margin-bottom:8px}
.tile .spark,.tile>p:last-child{margin-top:auto}
.spark{display:block;width:100%;height:44px;flex:none;overflow:visible}
.spark .area{fill:var(--accent);opacity:.11}
.spark .curve{fill:none;stroke:var(--accent);stroke-width:1.6;vector-effect:non-scaling-stroke;stroke-linejoin:round}
.spark .dot{fill:none;stroke:var(--accent);stroke-width:5.5;stroke-linecap:round;vector-effect:non-scaling-stroke}
.spark .plan{stroke:var(--soft);stroke-width:1;stroke-dasharray:2 2;vector-effect:non-scaling-stroke;opacity:.65}
.spark .gap{stroke:var(--bad);stroke-width:2.5;vector-effect:non-scaling-stroke}
.range{display:flex;justify-content:space-between;font-size:11.5px;color:var(--soft);margin-top:4px}
.pair{display:grid;grid-template-columns:repeat(2,minmax(0,1fr));gap:14px}
.split{display:grid;grid-template-columns:minmax(0,2fr) minmax(0,1fr);gap:0 32px}
.bar{display:flex;width:100%;height:20px;border-radius:4px;overflow:hidden;margin:11px 0 10px;background:var(--faint)}
.bar i{display:block;height:100%;border-right:1px solid var(--card)}
.bar i:last-child{border-right:0}
.ph0{background:var(--p0)}.ph1{background:var(--p1)}.ph2{background:var(--p2)}.ph3{background:var(--p3)}
.ph4{background:var(--p4)}.ph5{background:var(--p5)}.ph6{background:var(--p6)}.ph7{background:var(--p7)}
.legend{display:grid;grid-template-columns:repeat(auto-fill,minmax(156px,1fr));gap:6px 18px;margin:0;padding:0;list-style:none}
.legend li{display:grid;grid-template-columns:10px minmax(0,1fr);column-gap:6px;overflow-wrap:break-word;align-items:baseline;align-content:start}
.legend .key{width:10px;height:10px;border-radius:2px;align-self:center}
.legend small{grid-column:2;color:var(--soft);font-size:12px}
.scroll{overflow-x:auto;margin:8px -16px 0;padding:0 16px}
table{border-collapse:collapse;width:100%}
th{font-size:12px;font-weight:550;color:var(--soft);text-align:left;padding:3px 12px 5px 0;border-bottom:1px solid var(--line);white-space:nowrap}
td{padding:6px 12px 6px 0;border-bottom:1px solid var(--faint);vertical-align:middle}
tr:last-child td{border-bottom:0}
th:last-child,td:last-child{padding-right:0}
.n{text-align:right;white-space:nowrap}
td .bar{height:12px;min-width:110px;margin:0;background:none;border-radius:3px}
td .bar.meter{background:var(--faint)}.over{background:var(--bad)}
tr.slow td:first-child,tr.gone td:first-child{font-weight:650}
.strip{display:grid;grid-template-columns:repeat(auto-fill,minmax(72px,1fr));gap:4px;margin:10px 0 0;padding:0;list-style:none}
.strip li{min-width:0;border-radius:4px;padding:4px 6px 5px;font-size:11.5px;line-height:1.25;overflow:hidden}
.strip b,.strip span,.strip em{display:block;overflow:hidden;text-overflow:ellipsis;white-space:nowrap;font-style:normal}
.strip em{font-size:11px}
.strip b{font-weight:640}
.strip.small{display:flex;flex-wrap:wrap;gap:2px;--hatch:rgba(90,100,110,.45)}
.strip.small li{flex:0 0 11px;height:20px;padding:0;border-radius:2px}
.q0{background-color:var(--q0)}.q1{background-color:var(--q1)}.q2{background-color:var(--q2)}.q3{background-color:var(--q3)}
.a1{background-image:repeating-linear-gradient(135deg,var(--hatch) 0 3px,transparent 3px 7px)}
.a2{background-image:linear-gradient(var(--hatch),var(--hatch));background-size:100% 5px;background-position:0 100%;background-repeat:no-repeat}
.a3{background-image:repeating-linear-gradient(90deg,var(--hatch) 0 2px,transparent 2px 6px)}
.part{background-image:repeating-linear-gradient(135deg,var(--stripe) 0 2px,transparent 2px 5px)}
tr.evidence td{padding-top:0;color:var(--soft)}.keys+.hint{margin-top:8px}
.heat{display:grid;grid-template-columns:max-content minmax(0,1fr);gap:0 8px;margin-top:10px}
.heat ol{margin:0;padding:0;list-style:none;text-align:right;font-size:11px;line-height:14px;color:var(--soft)}
.heat li{height:14px}.heat b{color:var(--warn);font-weight:700}
.heat svg{display:block;width:100%;height:100%;stroke:var(--card);stroke-width:1px}
.heat path{vector-effect:non-scaling-stroke}
.h0{fill:var(--h0);background:var(--h0)}.h1{fill:var(--h1);background:var(--h1)}.h2{fill:var(--h2);background:var(--h2)}
.h3{fill:var(--h3);background:var(--h3)}.h4{fill:var(--h4);background:var(--h4)}.h5{fill:var(--h5);background:var(--h5)}
.h6{fill:var(--card);background:var(--card)}.keys .h6{box-shadow:inset 0 0 0 1px var(--line)}
.strip.lettered{display:flex;flex-wrap:wrap;gap:2px}
.strip.lettered li{flex:0 0 20px;height:20px;padding:0;border-radius:3px;font-size:10.5px;line-height:20px;text-align:center}
.hot{box-shadow:inset 0 0 0 2px var(--bad)}
.keys{display:flex;flex-wrap:wrap;gap:4px 16px;margin:10px 0 0;padding:0;list-style:none;font-size:12.5px;color:var(--soft)}
.keys i{display:inline-block;min-width:20px;height:16px;margin-right:5px;border-radius:3px;font-style:normal;font-size:10.5px;line-height:16px;text-align:center;vertical-align:top;margin-top:2px;color:var(--ink)}
.keys i.hot{color:var(--bad)}
.scaler .facts{margin-bottom:10px}.scaler .big{font-size:19px;font-weight:620;letter-spacing:-.01em}
.plain{margin:6px 0 0;padding-left:18px}
summary{cursor:pointer;color:var(--soft);font-size:13px}
.dense td{padding-top:4px;padding-bottom:4px}.dense small{color:var(--soft)}
.dense .why{min-width:240px;color:var(--soft);font-size:13px}
.dense .tag{color:var(--ink)}.dense .tag.bad{color:var(--bad)}
.group{margin-top:12px}
.group>h3{font-size:12px;font-weight:550;color:var(--soft);margin:0}
.log{list-style:none;margin:8px 0 0;padding:0}
.log li{display:grid;grid-template-columns:104px 92px 88px minmax(0,1fr);gap:2px 12px;padding:7px 0;border-top:1px solid var(--faint);align-items:baseline}
.log li:first-child{border-top:1px solid var(--line)}
.log .when{color:var(--soft);white-space:nowrap;font-size:13px}
.log .who{font-weight:550}
.log .why{overflow-wrap:anywhere}
.log .quiet .why,.log .quiet .who{color:var(--soft);font-weight:400}
.log small{color:var(--soft);white-space:nowrap}
.facts{display:grid;grid-template-columns:repeat(auto-fit,minmax(138px,1fr));gap:9px 20px;margin:9px 0 0}
.facts dt{font-size:12px;color:var(--soft)}
.facts dd{margin:0}
.links{display:grid;grid-template-columns:max-content 1fr;gap:6px 18px;margin:0}
.links dd{margin:0;color:var(--soft)}
footer{color:var(--soft);font-size:13px;display:flex;flex-wrap:wrap;gap:4px 16px;padding:2px 2px 0}
@media (max-width:900px){.split{grid-template-columns:minmax(0,1fr)}.pair{grid-template-columns:minmax(0,1fr)}.tiles{grid-template-columns:repeat(2,minmax(0,1fr))}}
@media (max-width:560px){.page{padding:14px 12px 22px;gap:10px}.tiles,.pair{gap:10px}
.card{padding:12px 12px}.tile .big{font-size:21px}.tile .big small{display:block;margin:-3px 0 0;font-size:12px}
.scroll{margin-left:-12px;margin-right:-12px;padding:0 12px}
.log li{grid-template-columns:auto auto 1fr}.log .when{grid-column:1/4;order:-1}.log .why{grid-column:1/4}
.legend{grid-template-columns:repeat(auto-fill,minmax(min(100%,138px),1fr));gap:6px 14px}
.links{grid-template-columns:1fr;gap:0}.links dd{margin-bottom:8px}
td .bar{min-width:70px}.wide{display:none}.range span:last-child{display:none}}
@media print{body{background:#fff}.card{break-inside:avoid}}
)css";

constexpr std::string_view kMark =
    "<svg class=\"mark\" viewBox=\"0 0 26 26\" aria-hidden=\"true\">"
    "<path d=\"M3.5 22.5 15 11\" fill=\"none\" stroke=\"currentColor\" stroke-width=\"2.4\" "
    "stroke-linecap=\"round\"/><ellipse cx=\"18.6\" cy=\"7.4\" rx=\"3.3\" ry=\"6.2\" "
    "transform=\"rotate(45 18.6 7.4)\" fill=\"currentColor\"/></svg>";

std::string attribute(std::string_view name, std::string_view value) {
  return value.empty() ? "" : fmt::format(" {}=\"{}\"", name, value);
}

}  // namespace

std::string escape(std::string_view text) {
  constexpr std::string_view kSpecial = "&<>\"'";
  constexpr std::array kEntities = {"&amp;", "&lt;", "&gt;", "&quot;", "&#39;"};
  std::string out;
  for (const char c : valid_utf8(text)) {
    const std::size_t special = kSpecial.find(c);
    if (special != std::string_view::npos)
      out += kEntities[special];
    else
      out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return out;
}

std::string tag(std::string_view css_class, std::string_view text) {
  return fmt::format("<span class=\"tag {}\">{}</span>", css_class, escape(text));
}

std::string card(std::string_view title, std::string_view body) {
  if (body.empty()) return {};
  return fmt::format("<section class=\"card\"><h2>{}</h2>{}</section>", title, body);
}

std::string note(std::string_view css_class, std::string_view text) {
  return fmt::format("<p class=\"note {}\" role=\"status\">{}</p>", css_class, escape(text));
}

std::string hint(std::string_view html) {
  return fmt::format("<p class=\"hint\">{}</p>", html);
}

std::string facts(const std::vector<Fact>& list) {
  std::string out = "<dl class=\"facts\">";
  for (const Fact& fact : list) {
    if (!fact.value.empty())
      out += fmt::format("<div><dt>{}</dt><dd>{}</dd></div>", fact.name, fact.value);
  }
  return out + "</dl>";
}

std::string meter(double percent, std::string_view css_class) {
  return fmt::format(
      "<div class=\"bar meter\" aria-hidden=\"true\"><i class=\"{}\" "
      "style=\"width:{}%\"></i></div>",
      css_class, fixed(percent, 1));
}

Table::Table(const std::vector<std::string_view>& columns, std::string_view css_class) {
  out_ = fmt::format("<div class=\"scroll\"><table{}><thead><tr>", attribute("class", css_class));
  for (const std::string_view column : columns) {
    const std::size_t slash = std::min(column.rfind('/'), column.size() - 1);
    classes_.push_back(attribute("class", column.substr(slash + 1)));
    out_ += fmt::format("<th{}>{}</th>", classes_.back(), column.substr(0, column.rfind('/')));
  }
  out_ += "</tr></thead><tbody>";
}

void Table::add(const std::vector<std::string>& cells, std::string_view css_class) {
  out_ += fmt::format("<tr{}>", attribute("class", css_class));
  for (std::size_t i = 0; i < cells.size(); ++i) {
    const bool reaches_on = i + 1 == cells.size() && cells.size() < classes_.size();
    const std::string look =
        reaches_on ? attribute("colspan", std::to_string(classes_.size() - i)) : classes_[i];
    out_ += fmt::format("<td{}>{}</td>", look, cells[i]);
  }
  out_ += "</tr>";
}

void Table::add_more(std::string_view path, std::size_t rows, std::size_t shown) {
  if (rows > shown) add({fmt::format("<a href=\"{}\">{} more</a>", path, rows - shown)});
}

std::string_view page_mark() {
  return kMark;
}

std::string html_document(std::string_view title, std::string_view head, std::string_view body) {
  std::string out = "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>";
  out += "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>";
  out += "<meta name=\"color-scheme\" content=\"light dark\"/>";
  out += head;
  out += "<title>" + escape(title) + "</title>";
  out +=
      "<link rel=\"icon\" href=\"data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' "
      "viewBox='0 0 16 16'%3E%3Cpath d='M2 14 9 7' stroke='%230b6b8a' stroke-width='2'/%3E"
      "%3Cellipse cx='11.5' cy='4.5' rx='2' ry='4' transform='rotate(45 11.5 4.5)' "
      "fill='%230b6b8a'/%3E%3C/svg%3E\"/>";
  out += "<style>";
  out += kStyle;
  out += "</style></head>\n<body>";
  out += body;
  out += "</body></html>\n";
  return out;
}

}  // namespace cox::metrics
