#include "sdk/src/stream/block_map.h"

#include <torch/torch.h>

#include <doctest/doctest.h>

namespace {

using at::Tensor;
using cox::BlockId;
using cox::detail::BlockMap;
using ModulePtr = std::shared_ptr<torch::nn::Module>;
using Names = std::vector<std::string>;

struct NamedChild {
  std::string name;
  ModulePtr module;
};

// Returns a module with these children.
ModulePtr tree(const std::vector<NamedChild>& children) {
  auto module = std::make_shared<torch::nn::Module>("Tree");
  for (const NamedChild& child : children) module->register_module(child.name, child.module);
  return module;
}

ModulePtr with_parameter(const ModulePtr& module, std::int64_t elements = 3) {
  module->register_parameter("scale", torch::ones({elements}));
  return module;
}

ModulePtr linear(std::int64_t width = 4) {
  return torch::nn::Linear(width, width).ptr();
}
ModulePtr norm(std::int64_t width = 4) {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})).ptr();
}
ModulePtr embedding(std::int64_t words = 7) {
  return torch::nn::Embedding(words, 4).ptr();
}

struct LayerImpl : torch::nn::Module {
  explicit LayerImpl(std::int64_t width) {
    register_module("norm", norm(width));
    register_module("linear", linear(width));
    register_module("drop", torch::nn::Dropout(0.1));
  }
};
ModulePtr layer(std::int64_t width = 4) {
  return std::make_shared<LayerImpl>(width);
}

ModulePtr list(const std::vector<ModulePtr>& elements) {
  torch::nn::ModuleList all;
  for (const ModulePtr& element : elements) all->push_back(element);
  return all.ptr();
}

ModulePtr gpt() {
  return tree({{"wte", embedding()},
               {"wpe", embedding(5)},
               {"h", list({layer(), layer(), layer()})},
               {"ln_f", norm()},
               {"head", torch::nn::Linear(torch::nn::LinearOptions(4, 7).bias(false)).ptr()}});
}

torch::nn::Module& module_at(torch::nn::Module& model, const std::string& path) {
  return *model.named_modules()[path];
}

ModulePtr tied_gpt() {
  ModulePtr model = gpt();
  const Tensor words = module_at(*model, "wte").parameters()[0];
  auto head = tree({});
  head->register_parameter("weight", words);
  model->unregister_module("head");
  model->register_module("head", head);
  return model;
}

ModulePtr sequential() {
  return torch::nn::Sequential(torch::nn::Linear(4, 4), torch::nn::ReLU(), torch::nn::Linear(4, 4))
      .ptr();
}

ModulePtr dictionary() {
  torch::nn::ModuleDict dict;
  dict->update(
      std::vector<std::pair<std::string, ModulePtr>>{{"one", linear()}, {"two", linear()}});
  return dict.ptr();
}

ModulePtr registered_twice() {
  const ModulePtr shared = linear();
  return tree({{"first", shared}, {"norm", norm()}, {"again", shared}});
}

BlockMap map_of(const torch::nn::Module& model, const Names& patterns = {},
                const std::string& name = {}) {
  auto map = BlockMap::make(model, patterns, name);
  REQUIRE_MESSAGE(map.ok(), map.status().text());
  return std::move(*map);
}

BlockId id(std::size_t block) {
  return BlockId(static_cast<BlockId::rep>(block));
}

Names names_of(const BlockMap& map) {
  Names names;
  for (std::size_t block = 0; block < map.size(); ++block) names.push_back(map.name(id(block)));
  return names;
}

c10::StorageImpl* storage(const Tensor& tensor) {
  return tensor.storage().unsafeGetStorageImpl();
}

// Returns the name of the block that an operator on the module's parameter belongs to.
std::string cut_at(const BlockMap& map, const Tensor& parameter) {
  const auto block = map.block_of(storage(parameter));
  return block ? map.name(*block) : "none";
}

// Returns whether modules of several blocks use the parameter.
bool is_shared(const BlockMap& map, const c10::StorageImpl* parameter) {
  return map.owner(parameter) && !map.block_of(parameter);
}

}  // namespace

TEST_SUITE("sdk.stream.block_map") {
  TEST_CASE("without patterns the elements of the largest uniform container are blocks") {
    struct Row {
      std::string title;
      ModulePtr model;
      Names blocks;
    };
    const std::vector<Row> rows = {
        {"layers between other modules",
         gpt(),
         {"wte", "wpe", "h.0", "h.1", "h.2", "ln_f", "head"}},
        {"a head with the parameter of an embedding is no block",
         tied_gpt(),
         {"wte", "wpe", "h.0", "h.1", "h.2", "ln_f"}},
        {"a Sequential, its elements without parameters left out", sequential(), {"0", "2"}},
        {"a ModuleDict", dictionary(), {"one", "two"}},
        {"any module with children of one type",
         tree({{"a", layer()}, {"b", layer()}}),
         {"a", "b"}},
        {"of nested containers the outermost",
         tree({{"stages", list({list({layer(), layer()}), list({layer()})})}, {"head", linear()}}),
         {"stages.0", "stages.1", "head"}},
        {"of two containers the larger; the other is one block",
         tree({{"stem", norm()},
               {"encoder", list({layer(), layer(), layer()})},
               {"decoder", list({layer(8), layer(8)})}}),
         {"stem", "encoder", "decoder.0", "decoder.1"}},
        {"of two equal containers the first",
         tree({{"stem", norm()},
               {"x", list({layer(), layer()})},
               {"y", list({layer(), layer()})},
               {"head", linear()}}),
         {"stem", "x.0", "x.1", "y", "head"}},
        {"the rest as the largest modules that do not hold the container",
         tree({{"front", tree({{"stem", norm()}, {"body", list({layer(), layer()})}})},
               {"back", layer()}}),
         {"front.stem", "front.body.0", "front.body.1", "back"}},
        {"one element is no container: top-level children",
         tree({{"stem", norm()}, {"h", list({layer()})}, {"relu", torch::nn::ReLU().ptr()}}),
         {"stem", "h"}},
        {"parameters of the model itself", with_parameter(tree({})), {"model"}},
        {"parameters of the model beside those of its children",
         with_parameter(tree({{"norm", norm()}, {"head", linear()}})),
         {"model", "norm", "head"}},
        {"parameters of a module that holds the container",
         tree({{"norm", norm()},
               {"body", with_parameter(tree({{"layers", list({layer(), layer()})}}))}}),
         {"norm", "body", "body.layers.0", "body.layers.1"}},
        {"a module that is registered twice counts once", registered_twice(), {"first", "norm"}},
    };
    for (const Row& row : rows) {
      CAPTURE(row.title);
      CHECK(names_of(map_of(*row.model)) == row.blocks);
    }
  }

  TEST_CASE("with patterns the outermost modules that fit are blocks, inner ones by another one") {
    struct Row {
      Names patterns;
      Names blocks;
    };
    const std::vector<Row> rows = {
        {{"h.*"}, {"wte", "wpe", "h.0", "h.1", "h.2", "ln_f", "head"}},
        {{"h"}, {"wte", "wpe", "h", "ln_f", "head"}},
        {{"*"}, {"wte", "wpe", "h", "ln_f", "head"}},
        {{"model"}, {"model"}},
        {{"model", "h.1"}, {"model", "h.1"}},
        {{"h.1"}, {"wte", "wpe", "h.0", "h.1", "h.2", "ln_f", "head"}},
        {{"h.*", "h.1.linear"}, {"wte", "wpe", "h.0", "h.1", "h.1.linear", "h.2", "ln_f", "head"}},
        {{"h.1.linear", "h.*"}, {"wte", "wpe", "h.0", "h.1", "h.1.linear", "h.2", "ln_f", "head"}},
        {{"*.0.norm"}, {"wte", "wpe", "h.0.norm", "h.0.linear", "h.1", "h.2", "ln_f", "head"}},
    };
    for (const Row& row : rows) {
      CAPTURE(row.patterns.front());
      CHECK(names_of(map_of(*gpt(), row.patterns)) == row.blocks);
    }
  }

  TEST_CASE("a model's name stands before the names of its blocks, in patterns too") {
    const ModulePtr model = with_parameter(gpt());
    const Names expected = {"net", "net.wte", "net.wpe", "net.h", "net.ln_f", "net.head"};
    CHECK(names_of(map_of(*model, {"net.h"}, "net")) == expected);
    CHECK(names_of(map_of(*model, {"net"}, "net")) == Names{"net"});
    CHECK(names_of(map_of(*model, {}, "net"))[3] == "net.h.0");
  }

  TEST_CASE("what cannot be divided is refused in one line that says what to do") {
    ModulePtr many = tree({});
    for (std::size_t i = 0; i < cox::kMaxBlocks + 1; ++i)
      many->register_module(std::to_string(i), with_parameter(tree({}), 1));
    struct Row {
      ModulePtr model;
      Names patterns;
      std::string error;
    };
    const std::vector<Row> rows = {
        {tree({{"relu", torch::nn::ReLU().ptr()}}),
         {},
         "invalid_argument: model: expected a module with parameters, found none in 2 modules; "
         "register them before the model is adopted"},
        {gpt(),
         {"h.*", "h.3"},
         "invalid_argument: blocks: expected patterns that fit modules of the model, found h.3, "
         "which fits none of 15 with parameters; the nearest are h.0, h.1, h.2, h, wte and 10 "
         "more"},
        {gpt(),
         {"h.0.drop"},
         "invalid_argument: blocks: expected patterns that fit modules of the model, found "
         "h.0.drop, which fits none of 15 with parameters; the nearest are h.0.norm, h.0, "
         "h.1.norm, h.2.norm, h.0.linear and 10 more"},
        {many,
         {},
         "resource_exhausted: blocks of the model: expected at most 1024, found 1025; make each "
         "block a larger part of the model"},
    };
    for (const Row& row : rows)
      CHECK(BlockMap::make(*row.model, row.patterns).status().text() == row.error);
  }

  TEST_CASE("each parameter is found in its block, and nothing else is found") {
    const ModulePtr model = gpt();
    const BlockMap map = map_of(*model);
    std::uint64_t elements = 0;
    std::size_t parameters = 0;
    for (std::size_t block = 0; block < map.size(); ++block) {
      std::uint64_t own = 0;
      for (const Tensor& parameter : map.parameters(id(block))) {
        CHECK(map.block_of(storage(parameter)) == id(block));
        CHECK(map.owner(storage(parameter)) == id(block));
        CHECK_FALSE(is_shared(map, storage(parameter)));
        own += static_cast<std::uint64_t>(parameter.numel());
        ++parameters;
      }
      CHECK(map.elements(id(block)) == own);
      elements += own;
    }
    CHECK(parameters == model->parameters().size());
    CHECK(elements == 7 * 4 + 5 * 4 + 3 * (4 + 4 + 4 * 4 + 4) + 4 + 4 + 4 * 7);
    const Tensor view = module_at(*model, "h.1.linear").parameters()[0].t()[0];
    CHECK(cut_at(map, view) == "h.1");

    for (int i = 0; i < 1000; ++i) CHECK_FALSE(map.block_of(storage(torch::ones({4}))));
    CHECK_FALSE(map.block_of(nullptr));
    CHECK_FALSE(map.owner(nullptr));
    CHECK_FALSE(is_shared(map, nullptr));
  }

  TEST_CASE("a parameter of several blocks belongs to the first and cuts at none") {
    const ModulePtr model = tied_gpt();
    const BlockMap map = map_of(*model);
    const auto* words = storage(module_at(*model, "head").parameters()[0]);
    CHECK_FALSE(map.block_of(words));
    CHECK(is_shared(map, words));
    CHECK(map.owner(words) == id(0));
    CHECK(map.parameters(id(0)).size() == 1);
    CHECK(map.elements(id(0)) == 28);
  }

  TEST_CASE("two tensors in one storage are one shared parameter") {
    const ModulePtr first = linear(), second = linear();
    second->parameters()[0].set_data(first->parameters()[0].detach());
    const BlockMap map = map_of(*list({first, second}));
    CHECK(names_of(map) == Names{"0", "1"});
    CHECK(is_shared(map, storage(second->parameters()[0])));
    CHECK(map.owner(storage(second->parameters()[0])) == id(0));
    CHECK(cut_at(map, first->parameters()[1]) == "0");
    CHECK(cut_at(map, second->parameters()[1]) == "1");
    CHECK(map.elements(id(1)) == 4);
  }

  TEST_CASE("parameters that lie behind each other in one storage are each their own") {
    const at::Tensor flat = torch::zeros({40});
    const ModulePtr first = linear(), second = linear();
    std::int64_t at = 0;
    for (const ModulePtr& module : {first, second}) {
      for (at::Tensor& parameter : module->parameters()) {
        parameter.set_data(flat.narrow(0, at, parameter.numel()).view(parameter.sizes()));
        at += parameter.numel();
      }
    }
    const BlockMap map = map_of(*list({first, second}));
    CHECK(names_of(map) == Names{"0", "1"});
    for (const BlockId block : {id(0), id(1)}) {
      CHECK(map.parameters(block).size() == 2);
      CHECK(map.elements(block) == 20);
    }
    CHECK(map.owner(storage(flat)) == id(0));
    CHECK_FALSE(map.block_of(storage(flat)));  // an operator may read either of the two
  }

  TEST_CASE("a parameter that one block registers twice is not shared") {
    const ModulePtr inner = linear();
    const ModulePtr block = tree({{"a", inner}, {"b", tree({})}});
    block->children()[1]->register_parameter("weight", inner->parameters()[0]);
    const BlockMap map = map_of(*tree({{"block", block}, {"norm", norm()}}));
    CHECK(cut_at(map, inner->parameters()[0]) == "block");
    CHECK(map.elements(id(0)) == 20);
  }

  TEST_CASE("buffers are listed with their block, those of no block with the block before") {
    const auto statistics = [](bool affine) {
      return torch::nn::BatchNorm1d(torch::nn::BatchNorm1dOptions(4).affine(affine)).ptr();
    };
    const ModulePtr model = tree({{"in", statistics(false)},
                                  {"a", tree({{"linear", linear()}, {"norm", statistics(true)}})},
                                  {"b", linear()},
                                  {"out", statistics(false)}});
    const BlockMap map = map_of(*model);
    REQUIRE(names_of(map) == Names{"a", "b"});
    CHECK(map.buffers(id(0)).size() == 6);
    CHECK(map.buffers(id(0))[3].is_same(module_at(*model, "a.norm").buffers()[0]));
    CHECK(map.buffers(id(1)).size() == 3);
    CHECK(map.buffers(id(1))[0].is_same(module_at(*model, "out").buffers()[0]));
    CHECK_FALSE(map.block_of(storage(map.buffers(id(0))[0])));
  }

  TEST_CASE("refresh follows parameters to new storages and says whether there were any") {
    const ModulePtr model = tied_gpt();
    BlockMap map = map_of(*model);
    CHECK_FALSE(map.refresh());
    Tensor moved = module_at(*model, "h.1.linear").parameters()[0];
    const Tensor before = moved.detach();
    moved.set_data(moved.detach().clone());
    CHECK(cut_at(map, moved) == "none");
    CHECK(map.refresh());
    CHECK(cut_at(map, moved) == "h.1");
    CHECK(cut_at(map, before) == "none");
    CHECK_FALSE(map.refresh());

    model->to(torch::kDouble);
    CHECK(map.refresh());
    for (const auto& parameter : module_at(*model, "h.2").parameters())
      CHECK(cut_at(map, parameter) == "h.2");
    CHECK(is_shared(map, storage(module_at(*model, "wte").parameters()[0])));
    CHECK_FALSE(map.refresh());

    {
      at::NoGradGuard no_grad;
      for (auto& parameter : model->parameters()) parameter.add_(1);
    }
    CHECK_FALSE(map.refresh());
  }

  TEST_CASE("a further place of a shared parameter that is parted from it never cuts by itself") {
    const ModulePtr model = tied_gpt();
    BlockMap map = map_of(*model);
    const ModulePtr head = tree({});
    Tensor own = module_at(*model, "wte").parameters()[0].detach().clone();
    model->unregister_module("head");
    head->register_parameter("weight", own);
    own.set_data(module_at(*model, "wte").parameters()[0].detach());
    model->register_module("head", head);
    map = map_of(*model);
    own.set_data(own.detach().clone());
    CHECK(map.refresh());
    CHECK(cut_at(map, own) == "none");
    CHECK(map.owner(storage(own)) == id(0));
    CHECK(cut_at(map, module_at(*model, "wte").parameters()[0]) == "wte");
  }

  TEST_CASE("a model that is gone leaves no address behind that others could be taken for") {
    ModulePtr model = gpt();
    BlockMap map = map_of(*model);
    model.reset();
    std::vector<Tensor> others;
    for (int i = 0; i < 1000; ++i) others.push_back(torch::ones({4, 4}));
    for (const Tensor& other : others) CHECK_FALSE(map.block_of(storage(other)));
    CHECK(map.parameters(id(2)).empty());
    CHECK(map.refresh());
    CHECK_FALSE(map.refresh());
    for (int i = 0; i < 1000; ++i) others.push_back(torch::ones({4, 4}));
    for (const Tensor& other : others) CHECK_FALSE(map.block_of(storage(other)));
  }
}
