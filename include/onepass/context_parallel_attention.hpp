// Attention to a sequence that is sharded between ranks. All ranks make the same call, each with its rows:
//
//   onepass::MpiTransport transport(MPI_COMM_WORLD);  // onepass/transport_mpi.hpp
//   const auto layout = onepass::context_parallel::Layout::zigzag(length, transport.ranks());
//   onepass::context_parallel_attention(transport, {layout}, tensors, {.band = {.causal = true}});
//
// gather: the keys that a rank sees come to it, so that each query meets all its keys in one call: O, LSE and dQ are
// those of one device. ring: K and V go from rank to rank, and partial results in fp32 are merged. ulysses: heads are
// dealt out, each with the whole sequence (DeepSpeed-Ulysses, arXiv 2309.14509); ranks may share a K/V head. dK and dV
// go home in fp32 and are added there, in an order that does not depend on their arrival; where nothing is added, they
// go rounded.
#pragma once
#include <cstdint>
#include <vector>

#include "onepass/attention.hpp"
#include "onepass/context_parallel.hpp"
#include "onepass/export.h"
#include "onepass/launch.hpp"
#include "onepass/options.hpp"
#include "onepass/transport.hpp"

namespace onepass::inline v0 {

struct ContextParallel {
  context_parallel::Layout layout;        // the positions of each rank
  std::vector<std::int64_t> documents{};  // where packed documents begin, and the length; empty: one document
  // Layouts of one kind with equal units give the same bits for any number of ranks: O, LSE, dQ, dK and dV.
  bool reproducible = false;
  // Or ring, which needs less memory, or ulysses, which sends less if a rank sees most keys.
  context_parallel::Scheme scheme = context_parallel::Scheme::gather;
  // K and V come, and their gradients go, in this many groups of heads: the next one comes while one is computed. Two
  // are in memory at a time, and calls are smaller. More than 1 needs gather; the other schemes refuse it.
  std::int64_t head_groups = 1;
};

// The tensors are those of attention(), with this rank's rows: q, k, v and out [batch, heads, rows, dim], where rows is
// layout.count(rank), and lse and row_max [batch, heads_q, rows]. bias and bool_mask have this rank's rows and a column
// for each position; ulysses supports only those of 1 row. sinks and alibi_slopes are equal on all ranks. The band,
// expressions and dropout count positions within their document; a row is aligned with its own position. q, k and v of
// fp8_e4m3 have factors without blocks of rows, and no gradients. Not supported: caches, pages, and cu_seqlens, which
// `documents` takes the place of. The workspace of the launch is not used.
//
// Throws Error with outputs untouched, and on every rank the same sentence, if one rank's arguments are wrong or differ
// from the others'. Arguments are compared before anything is sent: on the CPU in every call, on a device in the first
// call of a kind. A rank that fails later ends the others' calls with its sentence (Transport::fail).
ONEPASS_API void context_parallel_attention(Transport& transport, const ContextParallel& how,
                                            const AttentionTensors& tensors, const Attention& attention = {},
                                            const Launch& launch = {});

// The gradients that are given, as attention_backward() computes them: dq, dk and dv of this rank's rows. dsinks,
// dalibi_slopes and dbias are this rank's part of a sum over ranks. Requires out, lse and dout.
ONEPASS_API void context_parallel_attention_backward(Transport& transport, const ContextParallel& how,
                                                     const AttentionTensors& tensors, const Attention& attention = {},
                                                     const Launch& launch = {});

// The same on a mesh: heads are dealt out within a node (ulysses), and the keys of other nodes come (gather), so only K
// and V of a rank's own heads travel between nodes. Rank r of the layout is rank r % within.ranks() of `within`, and
// its node, r / within.ranks(), is its rank in `between`. scheme, head_groups and reproducible stay at their defaults;
// bias and bool_mask have 1 row.
struct MeshTransport {
  Transport& within;
  Transport& between;
};
ONEPASS_API void context_parallel_attention(const MeshTransport& mesh, const ContextParallel& how,
                                            const AttentionTensors& tensors, const Attention& attention = {},
                                            const Launch& launch = {});
ONEPASS_API void context_parallel_attention_backward(const MeshTransport& mesh, const ContextParallel& how,
                                                     const AttentionTensors& tensors, const Attention& attention = {},
                                                     const Launch& launch = {});

// Attention of new tokens to a cache whose keys are spread over the ranks: each rank attends to its keys, and one merge
// joins the results in fp32 (Flash-Decoding over ranks). All ranks make the same call.
//
// q is [batch, heads_q, rows, dim], whole and equal on all ranks; its rows are new tokens, which are in the cache. k,
// v, seqused_k and page_table are this rank's part of the cache, as attention() takes a cache: any keys of a sequence,
// in the order of their positions. out [batch, heads, rows, dim_v], lse and row_max [batch, heads, rows] have the query
// heads decoded_heads() of this rank. row_max, the largest score of each row over the keys of all ranks, is given on
// all ranks or on none. sinks, k_descale, v_descale, the scale and the softcap as in attention(); everything else is
// refused. newest is int32 [batch], where q is: the rank that holds the keys of each sequence's new tokens. It must be
// given where q has two rows or more; a new token then sees the new ones up to itself.
//
// Throws Error as context_parallel_attention().
ONEPASS_API void context_parallel_decode(Transport& transport, const AttentionTensors& tensors,
                                         const ConstTensor& newest = {}, const Attention& attention = {},
                                         const Launch& launch = {});
ONEPASS_API context_parallel::Range decoded_heads(std::int64_t heads_q, std::int64_t ranks, std::int64_t rank);

}  // namespace onepass::inline v0
