#include "sdk/src/session/step_report.h"

#include <cmath>
#include <limits>
#include <string>

#include <doctest/doctest.h>

using namespace cox;
using namespace cox::detail;

TEST_SUITE("step notes") {
  TEST_CASE("the loss of several micro-batches is their weighted mean") {
    StepNotes notes;
    notes.add_loss(1, 3);
    notes.add_loss(5, 1);
    CHECK(notes.loss == doctest::Approx(2));
    CHECK(notes.weight == 4);
    CHECK_FALSE(notes.has(SignalFlag::nonfinite_loss));
  }

  TEST_CASE("the mean of no samples says nothing, whatever it is") {
    StepNotes notes;
    notes.add_loss(std::numeric_limits<double>::quiet_NaN(), 0);
    CHECK_FALSE(notes.has(SignalFlag::nonfinite_loss));
    notes.add_loss(2, 8);
    notes.add_loss(std::numeric_limits<double>::infinity(), 0);
    CHECK(notes.loss == 2);
    CHECK(notes.weight == 8);
    CHECK_FALSE(notes.has(SignalFlag::nonfinite_loss));
  }

  TEST_CASE("a loss that is not finite is flagged, also when later ones are") {
    for (const double bad :
         {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
      StepNotes notes;
      notes.add_loss(bad, 1);
      notes.add_loss(1, 1);
      CHECK(notes.has(SignalFlag::nonfinite_loss));
      CHECK_FALSE(std::isfinite(notes.loss));
    }
  }

  TEST_CASE("a scalar logged twice keeps its last value, long names are cut, a ninth is dropped") {
    StepNotes notes;
    notes.log("lr", 1);
    notes.log("lr", 2);
    const std::string name(40, 'n');
    notes.log(name, 3);
    notes.log(name, 4);
    CHECK(notes.scalar_count == 2);
    CHECK(notes.scalars[0].value == 2);
    CHECK(std::string(notes.scalars[1].name.data()) == name.substr(0, 23));
    CHECK(notes.scalars[1].value == 4);
    for (int i = 0; i < 20; ++i) notes.log("s" + std::to_string(i), i);
    CHECK(notes.scalar_count == kUserScalars);
    CHECK(std::string(notes.scalars[kUserScalars - 1].name.data()) == "s5");
  }
}
