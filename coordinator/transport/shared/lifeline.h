// Lifeline: a local socket that carries no data. A listening process of the node learns from it
// when this process ends, and in which order several processes end. The listener opens a
// LifelinePort. Each rank connects to the port and holds a Lifeline for as long as it wants to be
// watched. Each object belongs to one thread.
#pragma once

#include <cstdint>

#include "coordinator/core/status.h"
#include "coordinator/io/descriptor.h"

namespace cox::transport {

// The listening socket. The first rank of the node opens it, before forking the watching process.
// The node's ranks connect to its address.
class LifelinePort {
 public:
  static Result<LifelinePort> open();
  std::uint64_t address() const { return address_; }  // for Lifeline::connect() on this node; not 0
  int descriptor() const { return socket_.number(); }

 private:
  io::Descriptor socket_;
  std::uint64_t address_ = 0;
};

// A rank's connection, one per rank. Closed when the rank's process ends. The destructor sends a
// goodbye, after which the rank is no longer watched.
//
// Linux closes the descriptors of an ending process last in, first out: exit_files() queues them by
// ascending number, and task_work_run() takes the newest first (since Linux 4.3). A lifeline has a
// higher number than any descriptor from a launcher, so it closes before the launcher can see the
// end. A forked process that has not called exec() keeps both open.
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
