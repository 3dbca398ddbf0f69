#include "metrics/pages/values.h"

#include "coordinator/core/text.h"

namespace cox::metrics {

Value::Value(std::string text) : text_(std::move(text)) {}

Value::Value(std::string_view text) : text_(text) {}

Value::Value(const char* text) : text_(text) {}

Value::Value(Markup markup) : text_(std::move(markup.html)), is_markup_(true) {}

Value::Value(List records) : records_(std::move(records)) {}

Value::Value(Record record) {
  records_.push_back(std::move(record));
}

Record::Record(std::initializer_list<Field> fields) {
  fields_.reserve(fields.size());
  for (const Field& field : fields) fields_.push_back({field.name, std::move(field.value)});
}

const Value* Record::find(std::string_view name) const {
  for (const Field& field : fields_) {
    if (field.name == name) return &field.value;
  }
  return nullptr;
}

Record tag(std::string_view css_class, std::string_view text) {
  return {{"class", css_class}, {"text", text}};
}

List with_rows(List rows, std::size_t all) {
  if (rows.empty()) return {};
  Record out;
  if (all > 0) out.add("more", more_text(all, rows.size()));
  out.add("rows", std::move(rows));
  return {std::move(out)};
}

std::string more_text(std::size_t rows, std::size_t shown) {
  return rows > shown ? grouped(rows - shown) : "";
}

}  // namespace cox::metrics
