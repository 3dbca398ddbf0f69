// Lifeline: a local socket over which nothing is sent, so that another process of the node hears
// when this one ends, and in which order of several. The one that listens opens a LifelinePort;
// each rank connects to it, and holds its Lifeline for as long as it wants to be watched.
//
// When a process ends, Linux closes its descriptors last in, first out: exit_files() queues them by
// ascending number, task_work_run() takes the newest first (since Linux 4.3). A lifeline has a
// higher number than any descriptor that a launcher gave its process, so it ends before the
// launcher can hear of the end. A process that it forked, and that has not called exec(), keeps
// both open.
//
// Each object belongs to one thread.
#pragma once

#include <cstdint>

#include "coordinator/core/status.h"
#include "coordinator/io/descriptor.h"

namespace cox::transport {

// Where the ranks of a node reach the first one, before it forks.
class LifelinePort {
 public:
  static Result<LifelinePort> open();
  std::uint64_t address() const { return address_; }  // for Lifeline::connect() on this node; not 0
  int descriptor() const { return socket_.number(); }

 private:
  io::Descriptor socket_;
  std::uint64_t address_ = 0;
};

// What ends with the process of a rank; every rank holds one. Destroying it says goodbye: the rank
// is not watched any more.
class Lifeline {
 public:
  static Result<Lifeline> connect(std::uint64_t port);
  ~Lifeline();
  Lifeline(Lifeline&&) = default;
  Lifeline& operator=(Lifeline&&) = default;

 private:
  Lifeline() = default;
  io::Descriptor socket_;
};

}  // namespace cox::transport
