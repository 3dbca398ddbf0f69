// Creates an exchange. The ranks compare options, learn the nodes, and choose one path for all:
// shared memory only if every node has it.
#include <algorithm>
#include <optional>

#include "coordinator/transport/exchange/bucket_exchange.h"
#include "coordinator/transport/exchange/round_exchange.h"

namespace cox::transport {
namespace {

// The nodes as this rank sees them, in ranks of the job.
struct Nodes {
  std::unique_ptr<Communicator> node;  // this rank's
  std::vector<RankId> ranks;           // this node's
  std::vector<RankId> leaders;         // all nodes' leaders, ascending
  bool leads() const { return node->rank() == RankId(0); }
};

class Start {
 public:
  Start(Communicator& all, const ExchangeOptions& options) : all_(all), options_(options) {}

  Result<std::unique_ptr<BucketExchange>> run(const std::vector<BucketSpec>& buckets) {
    Result<BucketLayout> layout = BucketLayout::make(buckets, options_.chunk_bytes);
    if (Status same = compare(layout); !same.ok()) return same;
    Result<Nodes> nodes = find_nodes();
    if (!nodes.ok()) return nodes.status();
    if (options_.shared_memory == SharedMemory::avoid) {
      return messages(std::move(*nodes), std::move(*layout), "shared memory is switched off");
    }
    if (nodes->leaders.size() > 1 &&
        nodes->leaders.size() == static_cast<std::size_t>(all_.size())) {
      return messages(std::move(*nodes), std::move(*layout), "every node has one rank");
    }
    // A rank alone on its node gets no help: one chunk suffices.
    if (nodes->ranks.size() == 1) layout = BucketLayout::make(buckets, ~std::size_t{0});
    Result<SharedSegment> memory = segment(*nodes, *layout);
    const auto refusal = first_to_depart(all_, memory.status().message(), options_.wait);
    if (!refusal.ok()) return refusal.status();
    if (!refusal->somebody())
      return shared(std::move(*nodes), std::move(*layout), std::move(*memory));
    return messages(std::move(*nodes), std::move(*layout), refusal->text());
  }

 private:
  Status compare(const Result<BucketLayout>& layout) const {
    const std::uint64_t asked = options_.shared_memory == SharedMemory::use ? 1 : 2;
    const std::uint64_t mine = layout.ok() ? layout->fingerprint() * 4 + asked : 0;
    const auto gathered = all_gather(all_, mine, options_.wait);
    if (!gathered.ok()) return gathered.status();
    if (!layout.ok()) return layout.status();
    const std::vector<std::uint64_t>& all = *gathered;
    for (std::size_t r = 0; r < all.size(); ++r) {
      if (all[r] == all[0] && all[r] != 0) continue;
      return invalid_argument(
          "exchange: expected the same buckets and options on every rank, found different ones on "
          "rank ",
          r, all[r] == 0 ? ", which could not set up its own buckets" : " than on rank 0",
          "; all ranks must run the same model and settings");
    }
    return ok_status();
  }

  Result<Nodes> find_nodes() const {
    Nodes nodes;
    Status found = take(all_.split_by_node(), nodes.node);
    if (found.ok()) found = take(all_gather(*nodes.node, all_.rank(), options_.wait), nodes.ranks);
    if (found.ok()) found = take(all_gather(all_, nodes.ranks[0], options_.wait), nodes.leaders);
    if (!found.ok()) return found;
    std::ranges::sort(nodes.leaders);
    nodes.leaders.erase(std::unique(nodes.leaders.begin(), nodes.leaders.end()),
                        nodes.leaders.end());
    return nodes;
  }

  Result<SharedSegment> segment(const Nodes& nodes, const BucketLayout& layout) const {
    const auto ranks = static_cast<std::int32_t>(nodes.ranks.size());
    const std::size_t bytes = shared_exchange_bytes(layout, ranks);
    Result<SharedSegment> memory =
        ranks == 1 ? heap_segment(bytes) : nodes.node->shared_segment(bytes);
    if (memory.ok() && nodes.leads()) format_shared_exchange(memory->bytes(), layout, ranks);
    return memory;
  }

  // Splits leaders from the other ranks. Other ranks get null, because they need no communicator.
  Result<std::unique_ptr<Communicator>> leaders(const Nodes& nodes) const {
    Result<std::unique_ptr<Communicator>> made = all_.split(nodes.leads() ? 0 : 1);
    if (made.ok() && !nodes.leads()) return std::unique_ptr<Communicator>();
    return made;
  }

  static Status watch(Communicator& members, std::unique_ptr<DepartureWatch>& into) {
    std::unique_ptr<Communicator> own;
    Status made = take(members.duplicate(), own);
    if (made.ok()) into = std::make_unique<DepartureWatch>(std::move(own));
    return made;
  }

  Result<std::unique_ptr<BucketExchange>> shared(Nodes nodes, BucketLayout layout,
                                                 SharedSegment segment) const {
    SharedParts parts;
    parts.rank = all_.rank();
    parts.seat = nodes.node->rank().value();
    parts.node_ranks = nodes.ranks;
    parts.leader_ranks = nodes.leaders;
    parts.segment = std::move(segment);
    if (nodes.leaders.size() > 1) {
      if (Status made = take(leaders(nodes), parts.leaders); !made.ok()) return made;
    }
    if (parts.leaders != nullptr) {
      if (Status made = watch(*parts.leaders, parts.watch); !made.ok()) return made;
    }
    return make_shared_exchange(std::move(layout), options_.wait, std::move(parts));
  }

  Result<std::unique_ptr<BucketExchange>> messages(Nodes nodes, BucketLayout layout,
                                                   std::string note) const {
    MessageParts parts;
    parts.rank = all_.rank();
    parts.size = all_.size();
    const bool flat =
        nodes.leaders.size() == 1 || nodes.leaders.size() == static_cast<std::size_t>(all_.size());
    Status made = watch(all_, parts.watch);
    if (made.ok())
      made = flat ? take(all_.duplicate(), parts.all) : take(leaders(nodes), parts.leaders);
    if (made.ok() && !flat) made = take(nodes.node->duplicate(), parts.down);
    if (!made.ok()) return made;
    if (!flat) parts.up = std::move(nodes.node);
    return make_message_exchange(std::move(layout), options_.wait, std::move(note),
                                 std::move(parts));
  }

  Communicator& all_;
  const ExchangeOptions& options_;
};

}  // namespace

Result<std::unique_ptr<BucketExchange>> BucketExchange::create(Communicator& all,
                                                               std::vector<BucketSpec> buckets,
                                                               const ExchangeOptions& options) {
  return Start(all, options).run(buckets);
}

}  // namespace cox::transport
