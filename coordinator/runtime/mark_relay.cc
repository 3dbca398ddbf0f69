#include "coordinator/runtime/mark_relay.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <new>
#include <random>
#include <utility>

#include "coordinator/core/text.h"
#include "coordinator/io/thread.h"
#include "coordinator/transport/wait.h"

namespace cox::runtime {
namespace {

using transport::MarkBoard;
using transport::MarkClock;

constexpr std::uint32_t kLetterMagic = 0x4D584F43;  // "COXM"
constexpr std::uint16_t kLetterVersion = 1;
constexpr std::chrono::seconds kTick{1};
constexpr double kStillSeconds = 0.7;  // a mark that has not moved for so long is sent
constexpr std::chrono::seconds kNews{2};
constexpr std::chrono::milliseconds kHeardFor{3500};
constexpr std::size_t kMostSenders = 4096;
constexpr int kMostLetters = 65536;  // received at a time
constexpr float kLongest = 1e9f;

struct Letterhead {
  std::uint32_t magic = kLetterMagic;
  std::uint16_t version = kLetterVersion;
  std::uint16_t count = 0;
  RelaySecret secret{};
};
struct MarkLine {
  std::int32_t rank = 0;
  std::uint8_t activity = 0;
  std::uint8_t process = 0;
  std::uint16_t unused = 0;
  std::uint64_t round = 0;
  std::uint64_t step = 0;
  float activity_seconds = 0;
  float round_seconds = 0;
  float silent_seconds = 0;
  float unused_too = 0;
};
static_assert(sizeof(Letterhead) + kMarksOfALetter * sizeof(MarkLine) == kLetterBytes);

MarkLine line_of(const RankMark& mark) {
  return {mark.rank.value(),
          static_cast<std::uint8_t>(mark.activity),
          static_cast<std::uint8_t>(mark.process),
          0,
          mark.round.value(),
          mark.step.value(),
          static_cast<float>(mark.activity_seconds),
          static_cast<float>(mark.round_seconds),
          static_cast<float>(mark.silent_seconds),
          0};
}

bool is_time(float seconds) {
  return seconds >= 0 && seconds <= kLongest;  // false for NaN
}

bool is_sound(const MarkLine& line, std::size_t world_size) {
  return line.rank >= 0 && static_cast<std::size_t>(line.rank) < world_size &&
         line.activity < kActivities && line.process < kProcessStates &&
         is_time(line.activity_seconds) && is_time(line.round_seconds) &&
         is_time(line.silent_seconds);
}

RankMark mark_of(const MarkLine& line) {
  RankMark mark;
  mark.rank = RankId(line.rank);
  mark.activity = static_cast<Activity>(line.activity);
  mark.process = static_cast<ProcessState>(line.process);
  mark.round = RoundId(line.round);
  mark.step = StepId(line.step);
  mark.activity_seconds = static_cast<double>(line.activity_seconds);
  mark.round_seconds = static_cast<double>(line.round_seconds);
  mark.silent_seconds = static_cast<double>(line.silent_seconds);
  return mark;
}

RankMark older_by(RankMark mark, double seconds) {
  mark.activity_seconds += seconds;
  mark.round_seconds += seconds;
  mark.silent_seconds += seconds;
  return mark;
}

RelaySecret new_secret() {
  RelaySecret secret;
  std::random_device random;
  for (std::uint8_t& byte : secret) byte = static_cast<std::uint8_t>(random());
  return secret;
}

}  // namespace

std::vector<std::byte> write_letter(std::span<const RankMark> marks, const RelaySecret& secret) {
  const Letterhead head{kLetterMagic, kLetterVersion, static_cast<std::uint16_t>(marks.size()),
                        secret};
  std::vector<std::byte> bytes(sizeof head + marks.size() * sizeof(MarkLine));
  std::memcpy(bytes.data(), &head, sizeof head);
  for (std::size_t i = 0; i < marks.size(); ++i) {
    const MarkLine line = line_of(marks[i]);
    std::memcpy(bytes.data() + sizeof head + i * sizeof line, &line, sizeof line);
  }
  return bytes;
}

std::optional<std::vector<RankMark>> read_letter(std::span<const std::byte> bytes,
                                                 const RelaySecret& secret,
                                                 std::size_t world_size) {
  Letterhead head;
  if (bytes.size() < sizeof head || bytes.size() > kLetterBytes) return std::nullopt;
  std::memcpy(&head, bytes.data(), sizeof head);
  const bool is_ours =
      head.magic == kLetterMagic && head.version == kLetterVersion && head.secret == secret;
  if (!is_ours || bytes.size() != sizeof head + head.count * sizeof(MarkLine)) return std::nullopt;
  std::vector<RankMark> marks;
  for (std::size_t i = 0; i < head.count; ++i) {
    MarkLine line;
    std::memcpy(&line, bytes.data() + sizeof head + i * sizeof line, sizeof line);
    if (!is_sound(line, world_size)) return std::nullopt;
    marks.push_back(mark_of(line));
  }
  return marks;
}

namespace {

// Calls take(marks, from) for each received letter of this job.
template <class Take>
void take_letters(const transport::Datagrams& socket, const RelaySecret& secret,
                  std::size_t world_size, const Take& take) {
  std::array<std::byte, kLetterBytes> bytes;
  for (int i = 0; i < kMostLetters; ++i) {
    const auto received = socket.receive(bytes);
    if (!received) return;
    if (received->size > bytes.size()) continue;
    auto marks = read_letter(std::span(bytes).first(received->size), secret, world_size);
    if (marks) take(*marks, received->from);
  }
}

}  // namespace

MarkReceiver::MarkReceiver(transport::Datagrams socket, std::size_t world_size)
    : socket_(std::move(socket)), world_size_(world_size) {
  address_.secret = new_secret();
  address_.port = socket_.port();
  const auto ips = transport::own_ip_addresses(address_.ips.size());
  address_.count = static_cast<std::uint32_t>(ips.size());
  std::ranges::copy(ips, address_.ips.begin());
}

Result<std::unique_ptr<MarkReceiver>> MarkReceiver::open(std::size_t world_size) {
  auto socket = transport::Datagrams::open();
  if (!socket.ok()) return socket.status();
  return std::unique_ptr<MarkReceiver>(new MarkReceiver(std::move(*socket), world_size));
}

void MarkReceiver::collect(Clock::time_point now) {
  const Clock::time_point before = last_collect_.value_or(now);
  const bool is_news = last_collect_ && now - before <= kNews;
  last_collect_ = now;
  take_letters(socket_, address_.secret, world_size_, [&](const auto& marks, const auto& from) {
    if (!is_news) return;
    for (const RankMark& mark : marks) heard_[mark.rank.value()] = {mark, before, now};
    const auto known = std::ranges::find(senders_, from, &Sender::address);
    if (known != senders_.end()) {
      known->at = now;
    } else if (senders_.size() < kMostSenders) {
      senders_.push_back({from, now});
    }
  });
}

// A letter from before the present round of the node's ranks says nothing about the present round.
void MarkReceiver::fill(std::vector<RankMark>& marks, Clock::time_point now) const {
  const auto newest = std::ranges::max_element(marks, {}, &RankMark::round);
  const bool is_known = newest != marks.end() && newest->activity != Activity::unknown;
  const auto is_of_this_round = [&](const Heard& heard) {
    return !is_known || Seconds(now - heard.after).count() <= newest->round_seconds;
  };
  for (const auto& [rank, heard] : heard_) {
    RankMark& mark = marks[static_cast<std::size_t>(rank)];
    if (mark.activity != Activity::unknown || now - heard.at > kHeardFor) continue;
    if (!is_of_this_round(heard)) continue;
    mark = older_by(heard.mark, Seconds(now - heard.at).count());
  }
}

void MarkReceiver::answer(const Stall& stall, Clock::time_point now) const {
  const std::size_t told = std::min(stall.culprits.size(), MarkBoard::kMostTold);
  const auto letter = write_letter(std::span(stall.culprits).first(told), address_.secret);
  for (const Sender& sender : senders_) {
    if (now - sender.at <= kHeardFor) socket_.send(letter, sender.address);
  }
}

MarkSender::MarkSender(const NodeMarks& marks, const RelayAddress& post, std::size_t world_size,
                       transport::Datagrams socket)
    : marks_(marks), post_(post), world_size_(world_size), socket_(std::move(socket)) {}

Result<std::unique_ptr<MarkSender>> MarkSender::start(const NodeMarks& marks,
                                                      const RelayAddress& post,
                                                      std::size_t world_size) {
  auto socket = transport::Datagrams::open();
  if (!socket.ok()) return socket.status();
  std::unique_ptr<MarkSender> sender(new MarkSender(marks, post, world_size, std::move(*socket)));
  const Status started = transport::take(
      io::start_thread("marks", [raw = sender.get()] { raw->run(); }), sender->thread_);
  if (!started.ok()) return started;
  return sender;
}

MarkSender::~MarkSender() {
  {
    const std::scoped_lock lock(mutex_);
    is_stopping_ = true;
  }
  stopping_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void MarkSender::run() {
  std::unique_lock lock(mutex_);
  while (!stopping_.wait_for(lock, kTick, [this] { return is_stopping_; })) {
    lock.unlock();
    try {
      take_answers();
      send_marks();
    } catch (const std::bad_alloc&) {
      // The next tick tries again.
    }
    lock.lock();
  }
}

void MarkSender::send_marks() {
  const auto now = MarkClock::now();
  const auto is_still = [](const RankMark& mark) {
    return mark.activity != Activity::unknown &&
           (mark.silent_seconds >= kStillSeconds || mark.waited_seconds() >= kStillSeconds);
  };
  if (std::ranges::none_of(marks_.read(now, MarkBoard::Look::marks), is_still)) return;
  const auto marks = marks_.read(now, MarkBoard::Look::marks_and_processes);
  for (std::size_t first = 0; first < marks.size(); first += kMarksOfALetter) {
    const std::size_t count = std::min(kMarksOfALetter, marks.size() - first);
    const auto letter = write_letter(std::span(marks).subspan(first, count), post_.secret);
    for (std::size_t i = 0; i < std::min<std::size_t>(post_.count, post_.ips.size()); ++i) {
      const transport::DatagramAddress to{post_.ips[i], static_cast<std::uint16_t>(post_.port)};
      if (!answers_from_ || *answers_from_ == to) socket_.send(letter, to);
    }
  }
}

void MarkSender::take_answers() {
  std::optional<std::vector<RankMark>> newest;
  take_letters(socket_, post_.secret, world_size_, [&](auto& marks, const auto& from) {
    answers_from_ = from;
    newest = std::move(marks);
  });
  if (newest) marks_.board.tell(*newest, MarkClock::now());
}

// Ranks without news stay unknown. Looks at processes only while some rank waits, because each look
// costs a system call.
std::vector<RankMark> MarkRelay::marks_of_all(const NodeMarks& marks, std::size_t ranks,
                                              MarkClock::time_point now) const {
  std::vector<RankMark> all(ranks);
  for (std::size_t r = 0; r < all.size(); ++r) all[r].rank = rank_id(r);
  using Look = transport::MarkBoard::Look;
  std::vector<RankMark> here = marks.read(now, Look::marks);
  const bool does_one_wait = std::ranges::any_of(
      here, [](const RankMark& mark) { return mark.activity == Activity::waiting; });
  if (does_one_wait) here = marks.read(now, Look::marks_and_processes);
  for (const RankMark& mark : here) all[static_cast<std::size_t>(mark.rank.value())] = mark;
  if (post) {
    post->collect(now);
    post->fill(all, now);
  }
  return all;
}

Result<MarkRelay> set_up_relay(transport::Communicator& world, const NodeGroup& nodes,
                               const NodeMarks& marks, const Log& log) {
  MarkRelay mail;
  const Topology topology = make_topology(world.rank(), nodes.node_of_rank);
  if (topology.nodes.size() == 1) return mail;
  const std::size_t world_size = nodes.node_of_rank.size();
  RelayAddress address;
  Status trouble;
  if (world.rank() == kRoot) {
    trouble = transport::take(MarkReceiver::open(world_size), mail.post);
    if (mail.post != nullptr) address = mail.post->address();
  }
  if (Status told = broadcast(world, address, start_up_patience(world)); !told.ok()) return told;
  const bool is_far = topology.node_index() > 0;  // rank 0 is on the first node
  if (topology.is_leader() && is_far && address.port != 0)
    trouble = transport::take(MarkSender::start(marks, address, world_size), mail.courier);
  if (!trouble.ok())
    log.warning(concat(
        "nodes do not exchange their ranks' positions, so waits across nodes have no known cause: ",
        trouble.message()));
  return mail;
}

}  // namespace cox::runtime
