#include "coordinator/transport/exchange/departure_watch.h"

#include <algorithm>
#include <cstring>
#include <span>

namespace cox::transport {
namespace {
constexpr std::chrono::seconds kRoundBefore{10};  // words that are on their way, see say()
}  // namespace

Departure Departure::of(RankId rank, const std::string& why) {
  Departure departure;
  departure.rank = rank.value();
  std::copy_n(why.begin(), std::min(why.size(), departure.why.size() - 1), departure.why.begin());
  return departure;
}

std::string Departure::text() const {
  return {why.data(), strnlen(why.data(), why.size())};
}

Status Departure::status() const {
  return unavailable("rank ", rank, " has left the exchange: ", text());
}

void merge_into(Departure& into, const Departure& from) {
  if (from.somebody() && (!into.somebody() || from.rank < into.rank)) into = from;
}

Result<Departure> first_to_depart(Communicator& ranks, const std::string& why,
                                  const WaitPolicy& policy) {
  Departure first = why.empty() ? Departure{} : Departure::of(ranks.rank(), why);
  Status told = all_reduce(ranks, first, merging<Departure>(), policy);
  if (!told.ok()) return told;
  return first;
}

void DepartureWatch::hear_out(std::chrono::nanoseconds limit) {
  for (std::size_t i = 0; i < words_.size(); ++i) {
    Word& word = words_[(next_ + i) % words_.size()];
    if (!word.request.active()) continue;
    const WaitPolicy policy = with_timeout({.yields = 100}, limit, "a last word");
    if (!wait(*members_, word.request, policy).ok()) return;
  }
}

Status DepartureWatch::close_round() {
  return departed_ ? ok_status() : say(Departure{});
}

Status DepartureWatch::depart(const Departure& departure) {
  if (departed_) return ok_status();
  departed_ = true;
  return say(departure);
}

// Members close a round only when the round before is over, and the earlier round's words are then
// on their way. So four places are enough, and waiting for the oldest word is short.
Status DepartureWatch::say(const Departure& departure) {
  Word& word = words_[next_];
  next_ = (next_ + 1) % words_.size();
  if (word.request.active()) {
    const WaitPolicy policy = with_timeout({.yields = 100}, kRoundBefore, "the round before");
    if (Status heard = wait(*members_, word.request, policy); !heard.ok()) return heard;
    merge_into(heard_, word.said);
  }
  word.said = departure;
  const auto bytes = std::as_writable_bytes(std::span(&word.said, 1));
  return take(members_->start_all_reduce(bytes, merging<Departure>()), word.request);
}

Status DepartureWatch::hear(Word& word) {
  Result<Progress> progress = members_->test(word.request);
  if (!progress.ok()) return progress.status();
  if (*progress == Progress::done) merge_into(heard_, word.said);
  return ok_status();
}

Result<Departure> DepartureWatch::poll() {
  for (std::size_t i = 0; i < words_.size() && !heard_.somebody(); ++i) {
    Word& word = words_[(next_ + i) % words_.size()];
    if (!word.request.active()) continue;
    if (Status heard = hear(word); !heard.ok()) return heard;
  }
  return heard_;
}

bool DepartureWatch::all_heard() const {
  return std::ranges::none_of(words_, [](const Word& word) { return word.request.active(); });
}

}  // namespace cox::transport
