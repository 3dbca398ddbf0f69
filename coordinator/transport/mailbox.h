// The mailboxes of a node: how signals and plans travel between ranks that share memory, without
// MPI and without waiting. Both boards lie in a SharedSegment of the node's communicator; the
// coordinator's rank (or the node's leader) formats them, the others attach after a collective
// operation has told them that it did.
//
//   training threads -- post() --> SignalBoard -- collect() --> coordinator thread
//   coordinator thread -- publish() --> MaskBoard -- poll() --> training threads
#pragma once

#include "coordinator/transport/mask_board.h"
#include "coordinator/transport/signal_board.h"
