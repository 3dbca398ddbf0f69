// Operator graphs as files, as they are written and as they may come from anywhere.
#include "coordinator/io/operator_files.h"

#include <string>

#include "coordinator/io/file.h"

#include <doctest/doctest.h>

namespace cox {
namespace {

const std::string kGood =
    R"({"format": "coxswain-operator-graph", "version": 1, "name": "two", "base_bytes": 7,
"tensors": [10, 4], "results": [1], "operators": [
{"name": "mm", "ns": 3, "reads": [], "makes": [0]},
{"name": "sum", "ns": 2, "reads": [0], "makes": [1]}]})";

std::string with(const std::string& what, const std::string& instead) {
  std::string text = kGood;
  text.replace(text.find(what), what.size(), instead);
  return text;
}

TEST_SUITE("io.operator_files") {
  TEST_CASE("a graph reads back as it was written") {
    const auto graph = io::read_operator_graph(kGood);
    REQUIRE_MESSAGE(graph.ok(), graph.status().message());
    CHECK(graph->tensors[1] == planner::StepTensor{4, true});
    CHECK(graph->operators[1] == planner::StepOperator{"sum", 2, {0}, {1}});
    const auto again = io::read_operator_graph(io::to_json(*graph));
    REQUIRE(again.ok());
    CHECK(*again == *graph);
  }

  TEST_CASE("the recorded graphs of the seven models are read") {
    for (const char* name : {"resnet", "dcgan", "unet", "lstm", "gpt2", "scripted", "field"}) {
      CAPTURE(name);
      const auto text =
          io::read_file(std::string(COX_TEST_DATA) + "/operator-graphs/" + name + ".json", 1 << 20);
      REQUIRE(text.ok());
      const auto graph = io::read_operator_graph(*text);
      REQUIRE_MESSAGE(graph.ok(), graph.status().message());
      CHECK(graph->name == name);
      CHECK(graph->operators.size() > 50);
      CHECK(io::to_json(*graph) == *text);
    }
  }

  TEST_CASE("a graph that was cut off anywhere is refused") {
    for (std::size_t size = 0; size + 1 < kGood.size(); ++size)
      CHECK_FALSE(io::read_operator_graph(std::string_view(kGood).substr(0, size)).ok());
  }

  TEST_CASE("what is not as the page says is refused, by operator and field") {
    const struct {
      std::string text;
      std::string words;
    } cases[] = {
        {with("coxswain-operator-graph", "other"), "expected the format"},
        {with("\"version\": 1", "\"version\": 2"), "another release"},
        {with("\"base_bytes\": 7", "\"base_bytes\": -7"), "base_bytes"},
        {with("[10, 4]", "[10, 1e300]"), "tensors"},
        {with("[10, 4]", "[10, 4, 5]"), "found none"},
        {with("\"results\": [1]", "\"results\": [2]"), "results"},
        {with("\"reads\": [0]", "\"reads\": [1]"), "operators before it make"},
        {with("\"reads\": [0]", "\"reads\": [0.5]"), "operator 1: reads"},
        {with("\"reads\": [0]", "\"reads\": 0"), "operator 1"},
        {with("\"makes\": [1]", "\"makes\": [0]"), "nobody made before"},
        {with("\"ns\": 3", "\"ns\": true"), "operator 0"},
        {with("\"ns\": 3, ", ""), "ns"},
        {with("\"name\": \"sum\", ", ""), "operator 1"},
    };
    for (const auto& it : cases) {
      CAPTURE(it.text);
      const auto graph = io::read_operator_graph(it.text);
      REQUIRE_FALSE(graph.ok());
      CHECK_MESSAGE(graph.status().message().find(it.words) != std::string::npos,
                    graph.status().message());
    }
  }
}

}  // namespace
}  // namespace cox
