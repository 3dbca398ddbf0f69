// Every template of metrics/pages parses. The names that a template uses are the names of the
// values that the template is given.
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "metrics/analysis/findings/own_rules.h"
#include "metrics/catalogue.h"
#include "metrics/live_window.h"
#include "metrics/pages/template.h"
#include "metrics/routes.h"
#include "metrics/status_page.h"
#include "metrics/topics/decisions.h"
#include "metrics/topics/parallel.h"
#include "metrics/topics/plan.h"
#include "metrics/topics/ranks.h"
#include "tests/metrics/served_job.h"
#include "tests/metrics/text_search.h"

#include <doctest/doctest.h>

using namespace cox;
using namespace cox::metrics;

namespace {

using Names = std::set<std::string>;

std::string text_of(std::string_view page) {
  for (const PageFile& file : page_files()) {
    if (file.name == page) return std::string(file.text);
  }
  FAIL("no file " << page);
  return {};
}

// The names that a template and its parts use.
void add_used(std::string_view page, Names& to) {
  const std::string text = text_of(page);
  for (std::size_t at = text.find("{{"); at != std::string::npos; at = text.find("{{", at + 2)) {
    const std::string mark = text.substr(at + 2, text.find("}}", at) - at - 2);
    if (mark[0] == '>')
      add_used(mark.substr(1), to);
    else
      to.insert(mark.substr(std::string("#^/").find(mark[0]) != std::string::npos ? 1 : 0));
  }
}

void add_given(const Record& values, Names& to) {
  for (const Field& field : values.fields()) {
    to.insert(std::string(field.name));
    for (const Record& record : field.value.records()) add_given(record, to);
  }
}

template <class View>
void change(Snapshot& snapshot, const std::function<void(View&)>& how) {
  View view = snapshot.view<View>();
  how(view);
  snapshot.views.set(std::make_shared<const View>(std::move(view)));
}

// Adds effects, findings, slow hosts, shared updates and costs of blocks, of which a simulated job
// has none.
Snapshot troubled(Snapshot snapshot) {
  change<DecisionsView>(snapshot, [](DecisionsView& view) {
    view.effects = std::make_shared<const SharedEffects>(1, std::make_shared<const Effect>());
    view.scores = {{.policy = PolicyKind::shares}};
  });
  change<FindingsView>(snapshot, [](FindingsView& view) {
    view.time = UnixTime{1};
    view.steps = diagnosis::kLeastSteps;
    view.findings.emplace_back();
  });
  change<RanksView>(snapshot, [](RanksView& view) {
    view.slow.hosts.emplace_back();
    view.slow.job.emplace();
  });
  change<SharedUpdates>(snapshot, [](SharedUpdates& view) { view = {2, 20, 3, 0.01, 1}; });
  change<PlanView>(snapshot, [&snapshot](PlanView& view) {
    BlockCost cost{true, RankId(0), {}};
    cost.profile.flops = 1;
    view.costs = std::make_shared<const BlockCosts>(snapshot.job->blocks.size(), cost);
  });
  return snapshot;
}

std::vector<Snapshot> snapshots() {
  std::vector<Snapshot> all;
  for (const std::int32_t ranks : {1, 4, 40}) {
    for (const std::size_t blocks : {std::size_t{0}, std::size_t{14}, std::size_t{300}}) {
      SimulatedSetup setup;
      setup.ranks = ranks;
      setup.blocks = blocks;
      for (const int rounds : {0, 1, 30}) all.push_back(*served_after(setup, rounds).snapshot);
      setup.numerics = setup.uneven = setup.ranks_differ = setup.troubled = true;
      for (const int rounds : {3, 120}) all.push_back(*served_after(setup, rounds).snapshot);
      all.push_back(troubled(all.back()));
    }
  }
  return all;
}

}  // namespace

TEST_SUITE("metrics.pages") {
  TEST_CASE("every file of the folder parses") {
    const Result<Templates> templates = Templates::parse(page_files());
    CHECK_MESSAGE(templates.ok(), templates.status().text());
  }

  TEST_CASE("a section is given the names of its template, no more and no less") {
    std::map<std::string, Names> given;
    for (const Snapshot& snapshot : snapshots()) {
      for (const Topic& topic : topics()) {
        for (const Section& section : topic.sections) {
          add_given(section.values(snapshot), given[section.page]);
          CHECK_FALSE(contains(section_html(section, snapshot), "{{"));
        }
      }
    }
    for (const auto& [page, names] : given) {
      CAPTURE(page);
      Names used;
      add_used(page, used);
      for (const std::string& name : names)
        CHECK_MESSAGE(used.contains(name), name << " is not used");
      for (const std::string& name : used)
        CHECK_MESSAGE(names.contains(name), name << " is not given");
    }
  }

  TEST_CASE("no page asks for a name that it is not given") {
    for (const Snapshot& snapshot : snapshots()) {
      const Served served{std::make_shared<const Snapshot>(snapshot), snapshot.last_round_time, {}};
      CHECK_FALSE(contains(status_page(served), "{{"));
      CHECK_FALSE(contains(index_page(served, endpoints()), "{{"));
      CHECK_FALSE(contains(*rank_page(served, "rank=0"), "{{"));
    }
  }
}
