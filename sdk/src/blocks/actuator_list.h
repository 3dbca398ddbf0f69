// ActuatorList holds a session's actuators in the order of their calls, with one sequence for each
// interface. add() puts an actuator into the sequence of each interface that the actuator's class
// implements, known at compile time. So a step checks no actuator's type, and allocates nothing.
// Training thread only.
#pragma once

#include <exception>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "sdk/src/blocks/actuator.h"

namespace cox::detail {

// Owns the actuators that exist from the start; a loop adds its own while the loop lives.
class ActuatorList {
 public:
  // Returns the actuators that implement an interface, in the order of the list.
  template <class Interface>
  const std::vector<Interface*>& all() const {
    return std::get<std::vector<Interface*>>(sequences_);
  }

  // Appends an actuator and owns it.
  template <class Kind>
  void own(std::unique_ptr<Kind> actuator) {
    add(*actuator);
    owned_.push_back(std::move(actuator));
  }

  // Appends an actuator. REQUIRES: the actuator lives until its removal.
  template <class Kind>
  void add(Kind& actuator) {
    static_assert(std::is_final_v<Kind>,
                  "add an actuator by its own type, which has its interfaces");
    std::apply([&](auto&... each) { (add_to(each, actuator), ...); }, sequences_);
  }
  // Stores the end state of a Lasting actuator, unless an exception ends its loop.
  template <class Kind>
  void remove(Kind& actuator) {
    if constexpr (std::is_base_of_v<Lasting, Kind>) {
      if (std::uncaught_exceptions() == 0) left_.push_back(actuator.end_state());
    }
    std::apply([&](auto&... each) { (remove_from(each, actuator), ...); }, sequences_);
  }

  // Returns the end states of all Lasting actuators: first the removed ones, in order of removal,
  // then those in the list.
  std::vector<EndState> end_states() const {
    std::vector<EndState> states = left_;
    for (const Lasting* each : all<Lasting>()) states.push_back(each->end_state());
    return states;
  }

 private:
  template <class Interface, class Kind>
  static void add_to(std::vector<Interface*>& sequence, Kind& actuator) {
    if constexpr (std::is_base_of_v<Interface, Kind>) sequence.push_back(&actuator);
  }
  template <class Interface, class Kind>
  static void remove_from(std::vector<Interface*>& sequence, Kind& actuator) {
    if constexpr (std::is_base_of_v<Interface, Kind>) {
      std::erase(sequence, static_cast<Interface*>(&actuator));
    }
  }

  std::vector<std::shared_ptr<void>> owned_;
  std::tuple<std::vector<Actuator*>, std::vector<Measuring*>, std::vector<Steering*>,
             std::vector<Reporting*>, std::vector<Comparing*>, std::vector<Voting*>,
             std::vector<Saving*>, std::vector<Lasting*>>
      sequences_;
  std::vector<EndState> left_;
};

// AddedActuator adds an actuator to a list and removes it in the destructor.
template <class Kind>
class AddedActuator {
 public:
  AddedActuator(ActuatorList& list, Kind& actuator) : list_(list), actuator_(actuator) {
    list_.add(actuator_);
  }
  ~AddedActuator() { list_.remove(actuator_); }
  AddedActuator(const AddedActuator&) = delete;
  AddedActuator& operator=(const AddedActuator&) = delete;

 private:
  ActuatorList& list_;
  Kind& actuator_;
};

// Added is an actuator that is in a list for as long as it lives.
template <class Kind>
class Added {
 public:
  template <class... Parts>
  explicit Added(ActuatorList& list, Parts&&... parts)
      : actuator_(std::forward<Parts>(parts)...), added_(list, actuator_) {}

  Kind* operator->() { return &actuator_; }
  const Kind* operator->() const { return &actuator_; }

 private:
  Kind actuator_;
  AddedActuator<Kind> added_;
};

}  // namespace cox::detail
