// Generated from the crate gpuvm-layouts by its test tests/header.rs: do not edit.
// GPUVM_BLESS=1 cargo test -p gpuvm-layouts writes it again.
#pragma once

namespace gpuvm {
namespace layout {

/// Version of all layouts in this crate. The device library is compiled with its own copy and the
/// runtime compares the two before the first launch; raise it with every change of a field or a meaning.
constexpr const unsigned int LAYOUT_VERSION = 19;

/// Most GPUs, and so views, of a broadcast array.
constexpr const unsigned int BROADCAST_VIEWS_MAX = 16;

/// Bits of a page's entry: the views to store to besides the GPU's own.
constexpr const unsigned int BROADCAST_OTHERS_MASK = ((1 << BROADCAST_VIEWS_MAX) - 1);

/// Where a page's entry holds the view by which this GPU reaches the owner's copy.
constexpr const unsigned int BROADCAST_OWNER_SHIFT = BROADCAST_VIEWS_MAX;

/// For [`BroadcastDesc::others`]: pages differ, so that a store looks at its page's entry.
constexpr const unsigned int BROADCAST_BY_PAGE = 2147483648;

/// Parts of an array, of which the kernel's argument says whether stores there go to other views.
constexpr const unsigned int BROADCAST_PARTS = 64;

/// Bytes of a line, base-two logarithm: what leaves a GPU at once, and what a mark stands for.
constexpr const unsigned int BROADCAST_LINE_SHIFT = 7;

/// No fault.
constexpr const unsigned int FAULT_NONE = 0;

/// An index at or past the array's length.
constexpr const unsigned int FAULT_OUT_OF_RANGE = 1;

/// The fetch of a page completed with an error.
constexpr const unsigned int FAULT_FETCH = 2;

/// The page is in the error state since an earlier fetch failed.
constexpr const unsigned int FAULT_PAGE_ERROR = 3;

/// Every frame stayed pinned until the wait limit.
constexpr const unsigned int FAULT_FRAMES_PINNED = 4;

/// A completion did not come within the wait limit.
constexpr const unsigned int FAULT_COMPLETION_TIMEOUT = 5;

/// Another warp's fetch of the page did not end within the wait limit.
constexpr const unsigned int FAULT_PAGE_TIMEOUT = 6;

/// No ring slot came free within the wait limit.
constexpr const unsigned int FAULT_QUEUE_TIMEOUT = 7;

/// Every queue pair that reaches the home is in the error state.
constexpr const unsigned int FAULT_QUEUES_FAILED = 8;

/// More lanes than the page word counts hold one page.
constexpr const unsigned int FAULT_TOO_MANY_PINS = 9;

/// The write-back of a page completed with an error; the page stays dirty in its frame.
constexpr const unsigned int FAULT_WRITE_BACK = 10;

/// A prefetch, a pin or a slice that reaches past the array's end.
constexpr const unsigned int FAULT_OUT_OF_RANGE_SPAN = 11;

/// A page was fetched and does not have its checksum, and no other home has a good copy.
constexpr const unsigned int FAULT_CHECKSUM = 12;

/// Both homes of a page are stale: no good copy of it is left.
constexpr const unsigned int FAULT_NO_REPLICA = 13;

/// Syndrome of a page in the error state whose data did not have its checksum. No NIC has it.
constexpr const unsigned int SYNDROME_CHECKSUM = 254;

/// What a lane waits for, as it tells the simulated GPU's watchdog: nothing.
constexpr const unsigned int WAIT_NOTHING = 0;

/// The completion of a request: queue pair, index.
constexpr const unsigned int WAIT_COMPLETION = 1;

/// Another warp's fetch of a page: page id.
constexpr const unsigned int WAIT_PAGE = 2;

/// A frame for a page: page id.
constexpr const unsigned int WAIT_FRAME = 3;

/// A ring slot: first queue pair of the region.
constexpr const unsigned int WAIT_QUEUE = 4;

/// The write-back of a page: page id.
constexpr const unsigned int WAIT_WRITE_BACK = 5;

/// The page has no frame.
constexpr const unsigned long long STATE_ABSENT = 0ULL;

/// A fetch owns the page; its data is not valid yet.
constexpr const unsigned long long STATE_FETCHING = 1ULL;

/// The page's data is in its frame.
constexpr const unsigned long long STATE_RESIDENT = 2ULL;

/// The page could not be fetched; the frame field holds the fault code.
constexpr const unsigned long long STATE_ERROR = 3ULL;

/// Referenced since the clock's hand passed.
constexpr const unsigned long long REFERENCED_BIT = 1ULL;

/// A WRITE of the page is in flight: its frame may not be released.
constexpr const unsigned long long WRITE_BACK_BIT = (1ULL << 1ULL);

/// Position of the two state bits.
constexpr const unsigned int STATE_SHIFT = 2;

/// The state bits in place.
constexpr const unsigned long long STATE_MASK = (3ULL << STATE_SHIFT);

/// Position of the frame field.
constexpr const unsigned int FRAME_SHIFT = 4;

/// Width of the frame field.
constexpr const unsigned int FRAME_BITS = 28;

/// Largest number of frames of a virtual memory: one less than the field holds, since pool slots keep a spare value.
constexpr const unsigned long long FRAMES_MAX = ((1ULL << FRAME_BITS) - 1ULL);

/// The frame field in place.
constexpr const unsigned long long FRAME_MASK = (((1ULL << FRAME_BITS) - 1ULL) << FRAME_SHIFT);

/// Position of the version field.
constexpr const unsigned int VERSION_SHIFT = 32;

/// The version field in place: 11 bits.
constexpr const unsigned long long VERSION_MASK = (2047ULL << VERSION_SHIFT);

/// The frame is newer than the home.
constexpr const unsigned long long DIRTY_BIT = (1ULL << 43ULL);

/// Position of the pin count, the top field, so that it cannot carry into another.
constexpr const unsigned int PIN_SHIFT = 44;

/// Pins that may be held on one page; the other half of the field absorbs additions in flight.
constexpr const unsigned long long PINS_MAX = (1ULL << 19ULL);

/// Position of the rank in [`PoolState::spared`].
constexpr const unsigned int POOL_RANK_SHIFT = 56;

/// In [`PoolState::limit`]: a change of the number of frames is under way. Lanes that look for a frame help it.
constexpr const unsigned long long POOL_CHANGING_BIT = (1ULL << 32ULL);

/// Position of the end of the frames in [`PoolState::change`].
constexpr const unsigned int POOL_CHANGE_END_SHIFT = 28;

/// The first frame in [`PoolState::change`], and its end when shifted there.
constexpr const unsigned int POOL_CHANGE_FRAMES = 268435455;

/// Position of the change's number in [`PoolState::change`], below its kind: a kernel that is late does not take a later change for its own.
constexpr const unsigned int POOL_CHANGE_NUMBER_SHIFT = 56;

/// Numbers that changes have, one after the other.
constexpr const unsigned int POOL_CHANGE_NUMBERS = 64;

/// In [`PoolState::change`]: frames are withdrawn.
constexpr const unsigned long long POOL_WITHDRAW_BIT = (1ULL << 62ULL);

/// In [`PoolState::change`]: frames come back.
constexpr const unsigned long long POOL_RESTORE_BIT = (1ULL << 63ULL);

/// Queue kind: mlx5 work requests and completions (ConnectX, or the software NIC).
constexpr const unsigned int QUEUE_KIND_MLX5 = 1;

/// Queue kind: Linux SoftRoCE (`rdma_rxe`).
constexpr const unsigned int QUEUE_KIND_RXE = 2;

/// Bit of `QueueDesc::flags`: a READ's completion says nothing of its data in GPU memory. Each request takes two blocks of
/// the send ring, and the second, a read of the frame's end behind a fence, completes when the data is there. mlx5 only.
constexpr const unsigned int QUEUE_FLUSHES_READS = 1;

/// Bit of `QueueDesc::flags`: every completion overwrites entry 0 of the completion ring. mlx5 only.
constexpr const unsigned int QUEUE_COLLAPSED = 2;

/// Base-two logarithm of `FRAME_KEY_BYTES`.
constexpr const unsigned int FRAME_KEY_SHIFT = 31;

/// Bytes of frames that one local key covers, but for the last: drivers register GPU memory in pieces of at most 2 GiB.
constexpr const unsigned long long FRAME_KEY_BYTES = (1ULL << 31ULL);

/// Bit of `QueueState::reserved`: the pair is being mended.
constexpr const unsigned long long RESERVED_CLOSED = (1ULL << 63ULL);

/// Bit of `QueueState::failed`: the pair is in the error state.
constexpr const unsigned int QUEUE_FAILED = 1;

/// Bit of `QueueState::failed`: and stays there.
constexpr const unsigned int QUEUE_LOST = 2;

/// Phase bits of a record's state.
constexpr const unsigned int RECORD_INDEX_SHIFT = 2;

/// The slot may be written for the request whose index the state names.
constexpr const unsigned long long RECORD_FREE = 0ULL;

/// The request is written and may complete.
constexpr const unsigned long long RECORD_POSTED = 1ULL;

/// Somebody is handling the request's completion.
constexpr const unsigned long long RECORD_CLAIMED = 2ULL;

/// The completion was handled and a lane waits for the outcome; that lane frees the slot.
constexpr const unsigned long long RECORD_DONE = 3ULL;

/// The request did what it should.
constexpr const unsigned int OUTCOME_OK = 1;

/// The request failed for a reason of its own.
constexpr const unsigned int OUTCOME_FAILED = 2;

/// The request was flushed because its queue pair had failed before: another queue pair may serve it.
constexpr const unsigned int OUTCOME_FLUSHED = 3;

/// The page's data has arrived; it has a checksum, which the waiter compares before it publishes the page.
constexpr const unsigned int OUTCOME_ARRIVED = 4;

/// A READ that fills a frame.
constexpr const unsigned int REQUEST_FETCH = 1;

/// A WRITE of a cleaned page, whose frame goes to the pool afterwards.
constexpr const unsigned int REQUEST_CLEAN = 2;

/// A WRITE by flush: the page stays.
constexpr const unsigned int REQUEST_FLUSH = 3;

/// Request token: queue index above, ring slot plus one below; 0 is no token. 28 bits in all.
constexpr const unsigned int TOKEN_SLOT_BITS = 16;

/// Queue pairs a virtual memory may have: the token's upper 12 bits.
constexpr const unsigned int QUEUES_MAX = (1 << 12);

/// Large pages that may be filled at one time: their places are tokens as well.
constexpr const unsigned int FILLS_MAX = (1 << 10);

/// Ring entries a queue pair may have, so that slot plus one fits the token.
constexpr const unsigned int RING_ENTRIES_MAX = (1 << 15);

/// A demand fetch: from the miss, which ended at `at_ns` and took `took` ticks.
constexpr const unsigned int TIMELINE_FAULT = 1;

/// A page left its frame.
constexpr const unsigned int TIMELINE_EVICTION = 2;

/// The write-back of a page was posted to a queue pair.
constexpr const unsigned int TIMELINE_WRITE_POSTED = 3;

/// A page is written home. `took` is not 0 where a lane wrote it there itself.
constexpr const unsigned int TIMELINE_WRITTEN = 4;

/// A fetch that nobody waits for was posted to a queue pair.
constexpr const unsigned int TIMELINE_PREFETCH_POSTED = 5;

/// It has come.
constexpr const unsigned int TIMELINE_PREFETCHED = 6;

/// A doorbell was rung, for all requests up to `page`.
constexpr const unsigned int TIMELINE_DOORBELL = 7;

/// Smallest page: 4 KiB.
constexpr const unsigned long long PAGE_BYTES_MIN = (4ULL << 10ULL);

/// Largest page: 2 MiB.
constexpr const unsigned long long PAGE_BYTES_MAX = (2ULL << 20ULL);

/// Device code of a program: lanes copy pages themselves.
constexpr const unsigned int FEATURE_DIRECT = 1;

/// Device code of a program: lanes have NICs move pages.
constexpr const unsigned int FEATURE_QUEUED = 2;

/// Device code of a program: regions with replicas and checksums. Of [`FEATURE_QUEUED`].
constexpr const unsigned int FEATURE_GUARDED = 4;

/// Device code of a program: copies of pages at neighbour GPUs. Of [`FEATURE_DIRECT`].
constexpr const unsigned int FEATURE_VICTIMS = 8;

/// Device code of a program: frames whose number changes.
constexpr const unsigned int FEATURE_RESIZABLE = 16;

/// All of these: what a virtual memory may need.
constexpr const unsigned int FEATURES_ALL = 31;

/// Device code of a program: single faults and what else lanes note in a timeline, where there is one. No virtual memory needs it.
constexpr const unsigned int FEATURE_TIMELINE = 32;

/// The region is never written: its array type has no stores, and no page of it is ever dirty.
constexpr const unsigned int REGION_READ_ONLY = 1;

/// The region's slot in the table is in use.
constexpr const unsigned int REGION_LIVE = 2;

/// Every page has a frame of the region's own, and is never evicted.
constexpr const unsigned int REGION_NEVER_EVICTED = 4;

/// Each page has two homes: see [`RegionDesc::stale`].
constexpr const unsigned int REGION_REPLICATED = 8;

/// Each page has a checksum: see [`RegionDesc::checksums`].
constexpr const unsigned int REGION_CHECKED = 16;

/// Bit of [`RegionDesc::flags`]: pages leave their frames as if they had not been used, and those of this kind before others when one
/// of them comes.
constexpr const unsigned int REGION_READ_ONCE = 64;

/// Position of the region's rank in [`RegionDesc::flags`]: its pages leave when no page of a lower rank can. See `PoolState::spared`.
constexpr const unsigned int REGION_RANK_SHIFT = 16;

/// The highest rank.
constexpr const unsigned int REGION_RANK_MAX = 7;

/// Bit of [`RegionDesc::flags`]: pages are used in ascending order, so that the first fault of a walk reads ahead.
constexpr const unsigned int REGION_ASCENDING = 256;

/// Bit of [`RegionDesc::flags`]: nothing is read ahead.
constexpr const unsigned int REGION_RANDOM = 1024;

/// Homes that a page of a replicated region has.
constexpr const unsigned int REPLICAS_MAX = 2;

/// Bit of [`StripeDesc::flags`]: what the stripe held is gone for good, though its queue pairs may work.
constexpr const unsigned int STRIPE_LOST = 1;

/// Bit of [`RegionDesc::joins`] words: the WRITE to replica 0 has not ended. Replica 1's is the next bit.
constexpr const unsigned int JOIN_PENDING = 1;

/// Bit of [`RegionDesc::joins`] words: the WRITE to replica 0 is to be repeated. Replica 1's is the next bit.
constexpr const unsigned int JOIN_REPEAT = 4;

/// Bit of [`ArrayDesc::region`]: the region is never evicted, so words and data may be read by weak loads.
constexpr const unsigned int ARRAY_NEVER_EVICTED = 2147483648;

/// Bit of [`ArrayDesc::region`]: a page without a frame may be read at its home, which lanes reach by loads and which begins at a
/// multiple of 16 bytes.
constexpr const unsigned int ARRAY_IN_PLACE = 1073741824;

/// Bit of [`ArrayDesc::region`], with [`ARRAY_IN_PLACE`]: a page that is read is fetched while frames are free.
constexpr const unsigned int ARRAY_FETCH_WHILE_FREE = 536870912;

/// Bit of [`ArrayDesc::region`], with [`ARRAY_FETCH_WHILE_FREE`]: when no frame is free, what a read does with a page without a frame
/// follows from the rules that compete in the region's [`TableHead`].
constexpr const unsigned int ARRAY_DUELS = 268435456;

/// Bit of [`ArrayDesc::region`], with [`ARRAY_IN_PLACE`]: kernels write the region, so a read at the home must be followed by a second
/// look at the page's word.
constexpr const unsigned int ARRAY_HOME_CHANGES = 134217728;

/// Bit of [`ArrayDesc::region`]: stores to a page without a frame go to its home, which lanes reach by stores and which begins at a
/// multiple of 16 bytes. All launches that are in flight together agree about it.
constexpr const unsigned int ARRAY_STORES_IN_PLACE = 67108864;

/// Bit of [`ArrayDesc::region`]: the word of an absent page names a slot at a neighbour GPU, if any ([`VictimsDesc`]).
constexpr const unsigned int ARRAY_VICTIMS = 33554432;

/// Bit of [`RegionDesc::flags`]: as [`ARRAY_DUELS`].
constexpr const unsigned int REGION_DUELS = 32;

/// Bit of [`RegionDesc::flags`]: as [`ARRAY_FETCH_WHILE_FREE`].
constexpr const unsigned int REGION_FETCH_WHILE_FREE = 512;

/// Walks that a region's page table remembers: more than warps that run through it far apart, or some are forgotten.
constexpr const unsigned int STREAMS = 256;

/// One chunk that lanes read side by side, in [`TableHead::scattered_read`] and [`TableHead::chunk_cost`].
constexpr const unsigned int COST_UNIT = 16;

/// Base-two logarithm of a granule of a home, which reads near each other share: 2 MiB.
constexpr const unsigned int GRANULE_SHIFT = 21;

/// Granules whose translations a GPU is taken to know: an H200 reads at random as fast within 256 MiB as within less, and slower
/// within 1 GiB.
constexpr const unsigned int GRANULES = 256;

/// The rules that compete: the samples of [`TableHead::cost`].
constexpr const unsigned int PLACEMENT_RULES = 3;

/// No page displaces another. What a zeroed [`TableHead`] begins with.
constexpr const unsigned int RULE_FIRST_COME = 0;

/// A page that is read is fetched.
constexpr const unsigned int RULE_FETCH = 1;

/// A page is fetched once the reads of it at its home have cost as much as a fetch, and displaces one that was not used of late.
constexpr const unsigned int RULE_FREQUENCY = 2;

/// Of so many reads at a home, less one, one asks what to do with its page: the four fields of [`TableHead::sampling`]. Each read.
constexpr const unsigned int DRAW_ALL = 0;

/// Each page is fetched, and no read asks.
constexpr const unsigned int DRAW_FETCH = 128;

/// Where the count of its reads decides about the page.
constexpr const unsigned int DRAW_MANY = 3;

/// Where the page stays at home.
constexpr const unsigned int DRAW_FEW = 127;

/// Bits of one of the fields.
constexpr const unsigned int DRAW_BITS = 8;

/// Position of the block's size in [`TableHead::sampling`], of eight bits.
constexpr const unsigned int SAMPLING_BLOCK_SHIFT = 32;

/// [`TableHead::sampling`]: pages of the sample that fetches follow the rule of the pages in no sample, for a while, since fetching cost
/// far more.
constexpr const unsigned long long SAMPLING_RESTS_BIT = (1ULL << 40ULL);

/// Position of the number of the next decision in [`TableHead::sampling`], of four bits.
constexpr const unsigned int SAMPLING_TURN_SHIFT = 44;

/// Decisions of one round: [`SAMPLING_RESTS_BIT`] goes with the first one.
constexpr const unsigned int SAMPLING_TURNS = 16;

/// The draws of [`TableHead::sampling`] whose fields are all the same, times that.
constexpr const unsigned int DRAWS_ALIKE = 16843009;

/// The draws while frames are free and reads are scattered: pages are fetched once reads of them have cost as much.
constexpr const unsigned int DRAWS_COUNTED = (DRAW_MANY * DRAWS_ALIKE);

/// The draws where all pages stay at home.
constexpr const unsigned int DRAWS_AT_HOME = (DRAW_FEW * DRAWS_ALIKE);

/// Base-two logarithm of the largest page that is there before a read at its home would be. Of larger ones the first element is read
/// in place.
constexpr const unsigned int SMALL_PAGE_SHIFT = 12;

/// Bytes of a chunk, in which lanes fill a page that is larger.
constexpr const unsigned int FILL_CHUNK_BYTES = (8 << 10);

/// Pages larger than this are filled in chunks.
constexpr const unsigned int FILL_PAGE_BYTES = (16 << 10);

/// Tickets of [`FillState::head`] below this are for a chunk: the most chunks that a page may have.
constexpr const unsigned int FILL_END = 256;

/// A ticket that is for no chunk, while the fields change; takers may add to it and never reach the generation.
constexpr const unsigned int FILL_CLOSED = 2147483648;

/// Position of the generation in [`FillState::head`].
constexpr const unsigned int FILL_GENERATION_SHIFT = 32;

/// Position of the region in an page id.
constexpr const unsigned int PAGE_ID_REGION_SHIFT = 44;

/// Position of the replica that a request is about, in an page id. Frames' frame_pages have none.
constexpr const unsigned int PAGE_ID_REPLICA_SHIFT = 60;

/// Position of the "taken" mark in an page id; 0 means that the frame has no page.
constexpr const unsigned long long PAGE_ID_TAKEN_BIT = (1ULL << 63ULL);

/// Instead of a page id: the frame has no memory behind it, or is about to lose it, and nobody takes it.
constexpr const unsigned long long PAGE_WITHDRAWN = 1ULL;

/// Instead of a page id: the frame was withdrawn and has memory again; a change of the number of frames gives it to the pool.
constexpr const unsigned long long PAGE_RETURNING = 2ULL;

/// Pages a region may have.
constexpr const unsigned long long REGION_PAGES_MAX = (1ULL << PAGE_ID_REGION_SHIFT);

/// Regions a virtual memory may have.
constexpr const unsigned int REGIONS_MAX = (1 << 16);

/// A page that several NICs reach belongs to NIC `(page * NIC_HASH mod 2^64 >> 32) * nics >> 32`: one for good, so that a
/// READ never overtakes a WRITE of the same page. The multiplier is 2^63 over the golden ratio, made odd (Knuth, The Art of
/// Computer Programming, volume 3, 6.4).
constexpr const unsigned long long NIC_HASH = 5700357409661599243ULL;

/// Bit of the frame field of an absent page's word in a region with [`VictimsDesc`]: the page has no slot, and the field counts how often
/// it was fetched of late. The same of [`VictimsDesc::slots_kept`] and [`VictimsDesc::slot_uses`]. So slots are numbered below it, less one.
constexpr const unsigned int USE_BIT = (1 << 27);

/// Below [`USE_BIT`]: position of the age in which the count was right. It halves with each age.
constexpr const unsigned int USE_AGE_SHIFT = 19;

/// Slots that words can name.
constexpr const unsigned long long SLOTS_MAX = ((unsigned long long)USE_BIT - 2ULL);

/// Sub-buckets an octave of the latency histogram.
constexpr const unsigned int LATENCY_SUB_BITS = 3;

/// Buckets of the latency histogram: 8 an octave, the last one open.
constexpr const unsigned long long LATENCY_BUCKETS = 256ULL;

/// The kernel argument behind `gpuvm::array<T>`: a view of one region, passed by value.
struct alignas(16) ArrayDesc {
    /// Address of the region's page table words. Before them: a [`TableHead`].
    unsigned long long words;
    /// Address of frame 0.
    unsigned long long frames;
    /// Elements in the array.
    unsigned long long length;
    /// Address of the launch's [`VmDesc`].
    unsigned long long vm;
    /// Address of page 0 at the home when lanes copy the region's pages themselves; 0 when queue pairs do.
    unsigned long long home;
    /// Exact length of the region in bytes.
    unsigned long long bytes;
    /// Base-two logarithm of the page size.
    unsigned int page_shift;
    /// The region's index in the region table, with `ARRAY_*`.
    unsigned int region;
    /// Page size less one: an element's offset in its page is its byte number under this mask.
    unsigned int offset_mask;
    /// Page size over 16: the frame field of a page word, in place, times this is the frame's offset.
    unsigned int frame_scale;
};

/// A walk of one warp through pages of a region, as its faults showed it. Hints: a lost one costs a prefetch.
struct StreamState {
    /// The page of the last fault, the stride and how far was read ahead: see `Walk` in the device library.
    unsigned long long walk;
    /// When the last fault ended, in the device's ticks.
    unsigned int ended;
    /// What the last fetch took, in the device's ticks.
    unsigned int took;
};

/// What stands before the words of a region's page table, and keeps them aligned.
struct alignas(128) TableHead {
    /// With [`REGION_DUELS`]: what misses of each rule's sample of the pages have cost of late, in chunks of 16 bytes that go over
    /// the link.
    unsigned long long cost[PLACEMENT_RULES];
    /// All that was ever added to `cost`.
    unsigned long long spent;
    /// The rule (`RULE_*`) of pages in no sample.
    unsigned int rule;
    /// Base-two logarithm of what the samples spend between two decisions; 0: the region does not duel.
    unsigned int period_shift;
    /// In the low half the draws: how many of the reads at a home ask what to do with their page, as `DRAW_*` by the rule whose sample
    /// the page is in, the last one for pages in none. In the high half the base-two logarithm of the pages of a block: each rule has
    /// one of them for its sample. One word, because each read at a home looks at both.
    unsigned long long sampling;
    /// Where the search for a page that leaves its frame goes on, by the sample: blocks, counted on and on.
    unsigned int hands[PLACEMENT_RULES];
    /// Chunks of 16 bytes that lanes read side by side in the time of one scattered read far from recent ones, in sixteenths.
    unsigned int scattered_read;
    /// What a chunk that was read at the home has cost of late, in sixteenths of one that lanes read side by side.
    unsigned int chunk_cost;
    /// As `scattered_read`, of a read near recent ones: the GPU knows the translation of its address.
    unsigned int near_read;
    /// Address of a 64-bit count a page: chunks of 16 bytes that were read at its home, estimated from a sample of the reads. 0: nobody
    /// takes a profile.
    unsigned long long page_chunks;
    /// Where the home was read of late: numbers of granules, plus one, each at its number modulo the length. 0 for none.
    unsigned int granules[GRANULES];
    /// Walks of warps through the region's pages, over queue pairs.
    StreamState streams[STREAMS];
    /// How far pages that are worth a fetch have looked for one to displace: in the high half an epoch, in the low half looks in it. One
    /// word for pages of the frequency rule's sample, and one for those of none.
    unsigned long long looks[2];
    /// Unused, to the end of the line.
    unsigned long long reserved[3];
    /// Pages of a never-evicted region that are not resident: at 0 no access needs to look at a page's word.
    unsigned long long absent;
};

/// One region: its page table and where its pages live. Page `p` is page `p / homes` of home `p % homes`, and one NIC of
/// those that reach the home moves it, by a hash with [`NIC_HASH`].
struct alignas(64) RegionDesc {
    /// As [`ArrayDesc::words`].
    unsigned long long words;
    /// Exact length in bytes; the last page may be shorter than the others.
    unsigned long long bytes;
    /// Pages.
    unsigned long long pages;
    /// Address of `replicas * homes * nics` [`StripeDesc`]s: those of one home follow each other.
    unsigned long long stripes;
    /// Homes: 1, or one a memory node.
    unsigned int homes;
    /// `REGION_*`.
    unsigned int flags;
    /// Address of the frame 0 that the region's words count from.
    unsigned long long frames;
    /// As [`ArrayDesc::home`].
    unsigned long long home;
    /// NICs that reach each home.
    unsigned int nics;
    /// Evictors leave the region's dirty pages alone until this time, in units of 2^16 ns, since its WRITEs fail; 0: they
    /// do not. Written by lanes.
    unsigned int backed_off_until;
    /// With `REGION_REPLICATED`: address of a bitmap a replica, in words of 32 bits: pages whose copy there is not what was
    /// written back last, and is never read.
    unsigned long long stale;
    /// Words of each of these bitmaps.
    unsigned long long stale_words;
    /// With `REGION_REPLICATED`: address of 32 bits a page, `JOIN_*`: the WRITEs of the write-back in flight.
    unsigned long long joins;
    /// With `REGION_CHECKED`: address of 32 bits a page: the CRC-32C of its copy at home, or 0 when that is not known.
    unsigned long long checksums;
    /// Homes of each page: 1 or 2. The stripes of replica 1 follow those of replica 0.
    unsigned int replicas;
    /// Unused, to align.
    unsigned int pad;
    /// [`crate::reciprocal`] of `homes`.
    unsigned long long homes_reciprocal;
    /// Address of the [`VictimsDesc`] where clean pages go that leave their frames; 0 when they are dropped.
    unsigned long long victims;
    /// Unused, to a power of two.
    unsigned long long reserved;
};

/// A pool, of frames or of slots in borrowed memory: what lanes need to take one and to give it back.
struct PoolDesc {
    /// Address of the [`PoolState`].
    unsigned long long state;
    /// Address of `count` ring slots.
    unsigned long long ring;
    /// [`reciprocal`] of `count`.
    unsigned long long reciprocal;
    /// Frames, or slots, that there may be.
    unsigned int count;
    /// Unused, to align.
    unsigned int pad;
};

/// Slots in memory that neighbour GPUs lend, each for one page that has left its frame. The word of such a page has the slot's number plus
/// one in its frame field.
struct alignas(128) VictimsDesc {
    /// The slots that are free.
    PoolDesc free;
    /// Slots lie in chunks, each in one neighbour's memory, which takes it back as a whole. Address of the address of each chunk's first
    /// slot.
    unsigned long long chunks;
    /// Address of 32 bits a chunk: 1 while it is lent. The host alone writes them: 0 at any time, 1 while no launch runs.
    unsigned long long lent;
    /// Address of 32 bits a chunk: the lanes that copy pages there. The lender waits for 0 after it has written 0 to `lent`.
    unsigned long long writers;
    /// Base-two logarithm of the slots of a chunk.
    unsigned int chunk_shift;
    /// With fewer free slots pages stop to keep theirs.
    unsigned int spare_min;
    /// Address of 32 bits a frame: one plus the slot that its page keeps, which has the frame's bytes; or, with [`USE_BIT`], how often the
    /// page was fetched of late; 0 for neither. It is changed by who has the frame, or the write-back mark of its page.
    unsigned long long slots_kept;
    /// Whether a page that is fetched from its slot keeps it beside its frame. 0 when slots became few, until there are twice as many as
    /// `spare_min`. A hint.
    unsigned int keeps;
    /// An age ends when the hand over the slots, which is that of `free`, has moved by two to the power of this.
    unsigned int age_shift;
    /// Address of 64 bits a slot: the page id of whose word may name it, 0 for none. A hint that the word confirms.
    unsigned long long slot_pages;
    /// Address of 32 bits a slot: how often its page had been fetched when it came, with [`USE_BIT`]. A hint.
    unsigned long long slot_uses;
    /// Unused, to the end of the line.
    unsigned int reserved[8];
};

/// One stripe of a region: the pages of one home that one NIC moves, and the NIC's queue pairs that reach them.
struct alignas(32) StripeDesc {
    /// Address of the home's page 0, as the NIC's remote address.
    unsigned long long home;
    /// Address of the NIC's local keys of the region's own frames, as [`crate::QueueDesc::frame_keys`] has those of the
    /// pool's; 0 when it has none.
    unsigned long long frame_keys;
    /// Remote key of the home.
    unsigned int rkey;
    /// First queue pair that reaches the home.
    unsigned int queue_first;
    /// Queue pairs that reach the home.
    unsigned int queue_count;
    /// `STRIPE_*`.
    unsigned int flags;
};

/// The filling of one large page by several warps, chunk by chunk. The page's word holds the place in the table plus one
/// as its token.
struct alignas(128) FillState {
    /// Generation above, the next ticket below. The first of a page is `FILL_END - chunks`, so that a ticket alone says
    /// whether it is for a chunk, whatever page is filled through this place by the time its taker looks.
    unsigned long long head;
    /// Chunks that are filled.
    unsigned int done;
    /// Chunks of the page.
    unsigned int chunks;
    /// The page, as in the table of frames.
    unsigned long long page_id;
    /// Address of the page's frame.
    unsigned long long frame;
    /// Address of the page at its home.
    unsigned long long home;
    /// Exact length of the page in bytes.
    unsigned int bytes;
    /// Taken (1) by the warp that fills a page through this place.
    unsigned int taken;
    /// Unused, to 128 bytes.
    unsigned long long reserved[10];
};

/// The whole virtual memory. Nobody writes it while a kernel runs; what lanes or the host change lies behind its addresses. Each launch has a
/// copy, at the beginning of its [`LaunchState`](crate::LaunchState).
struct alignas(128) VmDesc {
    /// [`crate::LAYOUT_VERSION`] of the runtime.
    unsigned int layout_version;
    /// Base-two logarithm of the page size.
    unsigned int page_shift;
    /// Address of frame 0; frames follow each other.
    unsigned long long frames;
    /// The frames that are free; its count is that of all frames that there may be.
    PoolDesc pool;
    /// Address of a page id for each frame that there may be.
    unsigned long long frame_pages;
    /// Address of `region_count` [`RegionDesc`]s.
    unsigned long long regions;
    /// Slots of the region table.
    unsigned int region_count;
    /// Number of queue pairs.
    unsigned int queue_count;
    /// Address of `queue_count` [`crate::QueueDesc`]s.
    unsigned long long queues;
    /// Address of `counter_shards` [`Counters`].
    unsigned long long counters;
    /// Number of counter shards, a power of two.
    unsigned int counter_shards;
    /// Groups of queue pairs: the queues of one group reach the same homes.
    unsigned int queue_groups;
    /// Address of the [`LatencyHistogram`] of demand fetches.
    unsigned long long latencies;
    /// Longest that a lane waits for one thing before it reports a fault, in nanoseconds.
    unsigned long long wait_limit_ns;
    /// Address of `fill_count` [`FillState`]s; 0 when there are none.
    unsigned long long fills;
    /// Large pages that may be filled at one time.
    unsigned int fill_count;
    /// How often `ticks()` counts in a microsecond, rounded up.
    unsigned int ticks_per_us;
};

/// The free pool's counters and the clock's hand, one 128-byte line each.
struct alignas(128) PoolState {
    /// Frames that may be taken (signed: takers subtract first and give back what was not there).
    unsigned long long available;
    /// Unused, to the end of the line.
    unsigned long long pad0[15];
    /// Ticket of the next frame to take.
    unsigned long long head;
    /// Unused, to the end of the line.
    unsigned long long pad1[15];
    /// Ticket of the next frame to give.
    unsigned long long tail;
    /// Unused, to the end of the line.
    unsigned long long pad2[15];
    /// The clock's hand: frames passed since the start.
    unsigned long long hand;
    /// Pages that left their frame: a lane that waits for a frame sees by it that others got on.
    unsigned long long turnover;
    /// Until the hand has come to the place in the low bits, pages up to the rank that stands from [`POOL_RANK_SHIFT`] on leave as those
    /// of rank 0 do: a lane that waited for a frame saw no other page leave.
    unsigned long long spared;
    /// The clock looks at the frames below the number in the low 32 bits: those from there on are withdrawn, or about to be. And
    /// [`POOL_CHANGING_BIT`]. The host changes it while kernels run.
    unsigned long long limit;
    /// Unused, to the end of the line.
    unsigned long long pad3[12];
    /// The change of the number of frames that is under way: first frame, end, number and kind; 0 for none. The host writes it while kernels run,
    /// and the kernel that ends it.
    unsigned long long change;
    /// Frames of the change that are not done yet; signed.
    unsigned long long change_left;
    /// Frames of the change that lanes have gone over, again and again if they are withdrawn.
    unsigned long long change_hand;
    /// Lanes that work on a change, or look whether there is one.
    unsigned long long helpers;
    /// The pool is refilled by evicting ahead while it has fewer frames than this. The host writes it while kernels run; a hint.
    unsigned long long frames_low;
    /// Unused, to the end of the line.
    unsigned long long pad4[11];
};

/// What the device library counts. Several shards; the host adds them up.
struct alignas(128) Counters {
    /// Lanes whose access found its page not resident.
    unsigned long long missed_lanes;
    /// Demand fetches posted: one for every group of lanes that won a claim.
    unsigned long long faults;
    /// Lanes that missed and were served by a fetch that another lane posted.
    unsigned long long coalesced;
    /// Pages fetched and published, prefetches included.
    unsigned long long pages_fetched;
    /// Pages whose WRITE completed.
    unsigned long long pages_written_back;
    /// Bytes of completed READs.
    unsigned long long bytes_fetched;
    /// Bytes of completed WRITEs.
    unsigned long long bytes_written_back;
    /// Pages that left their frame.
    unsigned long long evictions;
    /// Prefetches posted because a kernel asked.
    unsigned long long prefetches;
    /// Doorbells rung.
    unsigned long long doorbells;
    /// Requests posted.
    unsigned long long requests;
    /// Completions handled by a lane that had not posted the request.
    unsigned long long helped;
    /// Completions with an error.
    unsigned long long errors;
    /// Times that a lane found the pool empty.
    unsigned long long pool_dry;
    /// Times that a lane found every ring it may use full.
    unsigned long long queue_full;
    /// Pages that a failed fetch put into the error state.
    unsigned long long pages_failed;
    /// Pages that were fetched and did not have their checksum.
    unsigned long long pages_corrupt;
    /// Write-backs that did not reach one of the page's two homes, which is stale there since.
    unsigned long long replicas_missed;
    /// Stale copies that a write-back has mended.
    unsigned long long replicas_mended;
    /// Chunks of 16 bytes that were read at the pages' homes, estimated from a sample of the reads.
    unsigned long long chunks_in_place;
    /// Pages of regions with [`REGION_DUELS`] that a fault fetched while no frame was free.
    unsigned long long admissions;
    /// Pages of regions with [`REGION_DUELS`] that left their frame for another page of their region.
    unsigned long long displacements;
    /// Bytes that were stored at the pages' homes, in place.
    unsigned long long bytes_stored_in_place;
    /// Prefetches that were posted because the faults of a warp came in strides.
    unsigned long long read_ahead;
    /// Pages that lanes overwrote whole, so that they came to a frame without a fetch.
    unsigned long long pages_overwritten;
    /// Clean pages that left their frames and were copied to a slot of a neighbour GPU. Not those that had kept their slot.
    unsigned long long victims_copied;
    /// Pages that were fetched from such slots; `pages_fetched` and `bytes_fetched` have them, too.
    unsigned long long victims_fetched;
    /// Pages whose slot had been taken back when they were fetched, so that they came from their home.
    unsigned long long victims_lost;
    /// Stores of single lanes to broadcast arrays that went to other GPUs, estimated from a sample of the lines.
    unsigned long long broadcast_stores;
    /// Lines in which those left: what was merged is one.
    unsigned long long broadcast_lines;
    /// Pages that lost their slot at a neighbour GPU to a page that was fetched more often.
    unsigned long long victims_displaced;
    /// Unused, to a power of two: shards lie a shift apart.
    unsigned long long pad[3][11];
};

/// Demand fetches by the time from the miss to the publication, in the device's ticks. Bucket of `n` ticks: below 16 the
/// value itself, above `8 * (octave - 2) + next three bits`.
struct alignas(128) LatencyHistogram {
    /// Fetches a bucket.
    unsigned long long buckets[LATENCY_BUCKETS];
};

/// One queue pair: where its rings and registers are, and the keys to use. Read-only for the GPU.
///
/// Request `i` lies in slot `(send_start + i) & send_mask` of the send ring and completes in slot
/// `(completion_start + i) & completion_mask` of the completion ring; its record is number `i & mask`. Both sums wrap at
/// 2^32; mlx5 counts blocks and laps by them.
struct alignas(64) QueueDesc {
    /// `QUEUE_KIND_*`: the format of work requests and completions.
    unsigned int kind;
    /// Queue pair number, 24 bits.
    unsigned int number;
    /// Address of slot 0 of the send ring.
    unsigned long long send_ring;
    /// Address of slot 0 of the completion ring.
    unsigned long long completion_ring;
    /// Address of the 32-bit word that tells the NIC how far the send ring is written. mlx5: the send doorbell
    /// record, big-endian. rxe: the send ring's producer index.
    unsigned long long doorbell_record;
    /// Address of the 8-byte doorbell: the NIC's register, or a word that a doorbell proxy watches.
    unsigned long long doorbell;
    /// Requests in flight less one; a power of two less one.
    unsigned int mask;
    /// Send ring slots less one; a power of two less one, at least `mask`.
    unsigned int send_mask;
    /// Completion ring slots less one; at least `mask` (mlx5), or twice as many slots as requests (rxe).
    unsigned int completion_mask;
    /// Base-two logarithm of a send slot's bytes.
    unsigned int send_shift;
    /// Base-two logarithm of a completion slot's bytes.
    unsigned int completion_shift;
    /// Position of request 0 in the send ring. mlx5: modulo 2^32, since positions beyond the ring are in the requests.
    unsigned int send_start;
    /// Position of request 0's completion. mlx5: modulo 2^32, since the lap is in the completions.
    unsigned int completion_start;
    /// `QUEUE_*` bits.
    unsigned int flags;
    /// Address of the pair's [`QueueState`].
    unsigned long long state;
    /// Address of `mask + 1` [`RequestRecord`]s.
    unsigned long long records;
    /// rxe: address of the completion ring's 32-bit producer index, which the NIC advances.
    unsigned long long completion_produced;
    /// rxe: address of the completion ring's 32-bit consumer index, which makes room for completions.
    unsigned long long completion_consumed;
    /// Not 0: the host takes the pair out of the error state while kernels run, so its failure is not the end.
    unsigned int mended;
    /// Unused.
    unsigned int reserved;
    /// Address of the NIC's local keys of the pool's frames: 32 bits for each `FRAME_KEY_BYTES` of them.
    unsigned long long frame_keys;
    /// Unused, to 128 bytes.
    unsigned long long reserved_tail;
};

/// What GPU threads change in a queue pair. One 128-byte line a word, so that posters, the ringer
/// and readers do not disturb each other.
struct alignas(128) QueueState {
    /// Index of the next request to reserve. Every request below it has an owner that will write it. With
    /// `RESERVED_CLOSED` nobody can reserve: the host mends the pair.
    unsigned long long reserved;
    /// Unused, to the end of the line.
    unsigned long long pad0[15];
    /// Every request below this index is written. Advanced in order.
    unsigned long long written;
    /// Unused, to the end of the line.
    unsigned long long pad1[15];
    /// Taken (1) by the one lane that may store the doorbell record and ring.
    unsigned int ringer;
    /// Not 0: a request completed with an error and the pair takes no more. `QUEUE_FAILED`, perhaps `QUEUE_LOST`, the first
    /// error's syndrome from bit 8 and the vendor's from bit 16.
    unsigned int failed;
    /// Every request below this index was rung. Written by the ringer alone.
    unsigned long long posted;
    /// Unused, to the end of the line.
    unsigned long long pad2[14];
    /// A hint: requests below this index need nobody's help any more.
    unsigned long long cursor;
    /// Not 0: the far end has answered a request of a region with replicas or checksums since the host set it to 0.
    unsigned int answered;
    /// Not 0: requests have got no answer for some time, though the host mends the pair again and again. Regions with replicas turn
    /// to the other home. Written by the host.
    unsigned int silent;
    /// Unused, to the end of the line.
    unsigned int pad3[28];
};

/// The record of the request in one ring slot. Whoever needs the request finished can finish it.
///
/// `state` is `index << RECORD_INDEX_SHIFT | phase` for the request with that 64-bit index.
struct alignas(32) RequestRecord {
    /// Index and phase of the slot's request.
    unsigned long long state;
    /// The page, as in the table of frames: [`crate::page_id`].
    unsigned long long page_id;
    /// The frame that is filled or written back.
    unsigned int frame;
    /// `REQUEST_*`.
    unsigned int kind;
    /// Not 0: a lane waits for the outcome, and a fetch's publication takes this many pins for it. Handler and
    /// waiter both exchange it for 0; who finds 0 knows that the other was there first.
    unsigned int pins;
    /// What the page word's frame field holds while this fetch is in flight: 0, or a request token. With
    /// `RECORD_DONE` the outcome: `OUTCOME_*`.
    unsigned int token;
};

/// The first fault of a launch: written once, by the lane that won `claim`, read by the host.
struct alignas(128) FaultRecord {
    /// 0 free, 1 being written, 2 complete.
    unsigned int claim;
    /// `FAULT_*`.
    unsigned int code;
    /// Region index.
    unsigned int region;
    /// Queue pair index.
    unsigned int queue;
    /// Page of the region.
    unsigned long long page;
    /// Element index (out of range), else the work queue entry's 64-bit index.
    unsigned long long index;
    /// Array length in elements (out of range), else frames.
    unsigned long long size;
    /// Nanoseconds waited.
    unsigned long long waited_ns;
    /// Syndrome of the completion.
    unsigned int syndrome;
    /// Vendor syndrome of the completion.
    unsigned int vendor_syndrome;
    /// Block, linear in the grid.
    unsigned long long block;
    /// Thread, linear in the block.
    unsigned int thread;
    /// Multiprocessor.
    unsigned int multiprocessor;
    /// Frames pinned, when all frames were pinned.
    unsigned int frames_pinned;
    /// Frames whose page was being written back then.
    unsigned int frames_written_back;
    /// Frames whose page was being fetched then.
    unsigned int frames_fetching;
    /// Frames in the pool then.
    unsigned int frames_free;
    /// Unused, to 128 bytes.
    unsigned long long reserved[5];
};

/// State of one launch, in GPU memory. Descriptions in its arguments name `vm`: that is how lanes find it.
struct alignas(128) LaunchState {
    /// The virtual memory, as this launch has it.
    VmDesc vm;
    /// Not 0: slow paths end at once, `failed()` of arrays is true.
    unsigned int abort;
    /// Faults after the first.
    unsigned int later_faults;
    /// Not 0: a fault is told and ends nothing but what met it. The runtime's own kernels do each page for itself.
    unsigned int continues;
    /// Unused.
    unsigned int pad;
    /// Address of 32 bits in host memory: 1 once the first fault is told. The host need not read the rest where it is 0.
    unsigned long long told;
    /// Address of the [`TimelineDesc`](crate::TimelineDesc); 0 without a timeline.
    unsigned long long timeline;
    /// Unused, to the end of the line.
    unsigned int reserved[24];
    /// The first fault.
    FaultRecord fault;
};

/// The kernel argument behind `gpuvm::broadcast<T>`, on one GPU. Each GPU has a view of the array: addresses at which a page is its own
/// copy if it subscribed to the page, else the owner's. The views of one array lie side by side.
struct alignas(16) BroadcastDesc {
    /// Address of element 0 in this GPU's view.
    unsigned long long own;
    /// Elements.
    unsigned long long length;
    /// Address of element 0 in view 0.
    unsigned long long views;
    /// Bytes from one view to the next.
    unsigned long long stride;
    /// Address of 32 bits a page, its entry: `BROADCAST_OTHERS_MASK`, `BROADCAST_OWNER_SHIFT`. The host alone writes them, while no launch
    /// uses the array.
    unsigned long long pages;
    /// Address of a byte a page, in this GPU's memory: 1 once this GPU has read there. 0 where reads are not tracked.
    unsigned long long reads;
    /// Address of a byte a line, in this GPU's memory: 1 when this GPU has changed the owner's copy alone.
    unsigned long long marks;
    /// Address of 32 bits in host memory: 1 once a mark is set.
    unsigned long long marked;
    /// Address of this GPU's [`BroadcastCounters`].
    unsigned long long counters;
    /// Base-two logarithm of the page size.
    unsigned int page_shift;
    /// Lines whose number has none of these bits are counted.
    unsigned int sample_mask;
    /// The other views that every page is stored to, if all pages have the same; else [`BROADCAST_BY_PAGE`].
    unsigned int others;
    /// This GPU's view.
    unsigned int view;
    /// Address of the launch's [`VmDesc`](crate::VmDesc).
    unsigned long long vm;
    /// A bit for each part of the array, of `1 << part_shift` bytes: whether another view holds any of its pages, so that stores look
    /// further. It lies in the kernel's parameters: a store that no other GPU sees costs no load.
    unsigned long long held_parts;
    /// Base-two logarithm of a part's bytes, one page or more.
    unsigned int part_shift;
    /// Unused.
    unsigned int reserved;
};

/// What one GPU has stored to a broadcast array, of the lines that are counted.
struct BroadcastCounters {
    /// Stores of single lanes that went to other GPUs.
    unsigned long long stores;
    /// Lines that left for other GPUs: stores of one warp to one line are one.
    unsigned long long lines;
    /// Bytes that left for each view.
    unsigned long long bytes[BROADCAST_VIEWS_MAX];
    /// Lines that were passed on at the end of launches.
    unsigned long long passed_on;
    /// Unused, to the end of the line.
    unsigned long long reserved[13];
};

/// One event, in a ring of them.
struct alignas(64) TimelineEvent {
    /// One plus the event's number, once the rest is written.
    unsigned long long number;
    /// The page, as in the table of frames.
    unsigned long long page;
    /// When it ended, by the GPU's global timer, in nanoseconds.
    unsigned long long at_ns;
    /// How long it took, in the device's ticks.
    unsigned int took;
    /// Of a fault, in ticks from its beginning: when the page was claimed.
    unsigned int claimed;
    /// When a frame was there, and the request posted and the doorbell rung, or the copy under way.
    unsigned int posted;
    /// When the page's bytes were there.
    unsigned int arrived;
    /// `TIMELINE_*`.
    unsigned int kind;
    /// Of a fault: 1 when the page came, else 0.
    unsigned int well;
    /// The page's frame.
    unsigned int frame;
    /// The queue pair; all ones where lanes copy.
    unsigned int queue;
    /// The multiprocessor, and the warp's place there in the low 8 bits.
    unsigned int place;
    /// Of a fault: lanes that missed the page together.
    unsigned int lanes;
};

/// What changes of a ring of events.
struct alignas(64) TimelineState {
    /// Events that were begun.
    unsigned long long head;
    /// Those that the host has read. The host alone writes it.
    unsigned long long tail;
    /// Events for which the ring had no room.
    unsigned long long dropped;
    /// Unused, to the end of the line.
    unsigned long long reserved[5];
};

/// The timeline of a GPU. It follows the [`crate::VmDesc`] in memory, where there is one.
struct alignas(64) TimelineDesc {
    /// Address of the [`TimelineState`].
    unsigned long long state;
    /// Address of the [`TimelineEvent`]s.
    unsigned long long events;
    /// How many there are, less one: a power of two of them.
    unsigned int mask;
    /// Of 2^32 draws, those up to this one are noted.
    unsigned int threshold;
    /// Unused, to the end of the line.
    unsigned long long reserved[5];
};

}  // namespace layout
}  // namespace gpuvm

namespace gpuvm {
namespace layout {
static_assert(sizeof(QueueDesc) == 128, "size of QueueDesc");
static_assert(sizeof(QueueState) == 512, "size of QueueState");
static_assert(sizeof(RequestRecord) == 32, "size of RequestRecord");
static_assert(sizeof(ArrayDesc) == 64, "size of ArrayDesc");
static_assert(sizeof(RegionDesc) == 128, "size of RegionDesc");
static_assert(sizeof(VictimsDesc) == 128, "size of VictimsDesc");
static_assert(sizeof(TableHead) == 5248, "size of TableHead");
static_assert(sizeof(StreamState) == 16, "size of StreamState");
static_assert(sizeof(FillState) == 128, "size of FillState");
static_assert(sizeof(StripeDesc) == 32, "size of StripeDesc");
static_assert(sizeof(VmDesc) == 128, "size of VmDesc");
static_assert(sizeof(Counters) == 512, "size of Counters");
static_assert(sizeof(LatencyHistogram) == 2048, "size of LatencyHistogram");
static_assert(sizeof(PoolDesc) == 32, "size of PoolDesc");
static_assert(sizeof(PoolState) == 640, "size of PoolState");
static_assert(sizeof(FaultRecord) == 128, "size of FaultRecord");
static_assert(sizeof(LaunchState) == 384, "size of LaunchState");
static_assert(sizeof(BroadcastDesc) == 112, "size of BroadcastDesc");
static_assert(sizeof(BroadcastCounters) == 256, "size of BroadcastCounters");
static_assert(sizeof(TimelineEvent) == 64, "size of TimelineEvent");
static_assert(sizeof(TimelineState) == 64, "size of TimelineState");
static_assert(sizeof(TimelineDesc) == 64, "size of TimelineDesc");
#if !defined(__CUDACC_RTC__)  // NVRTC has no offsetof
static_assert(__builtin_offsetof(QueueDesc, kind) == 0, "offset of QueueDesc::kind");
static_assert(__builtin_offsetof(QueueDesc, number) == 4, "offset of QueueDesc::number");
static_assert(__builtin_offsetof(QueueDesc, send_ring) == 8, "offset of QueueDesc::send_ring");
static_assert(__builtin_offsetof(QueueDesc, completion_ring) == 16, "offset of QueueDesc::completion_ring");
static_assert(__builtin_offsetof(QueueDesc, doorbell_record) == 24, "offset of QueueDesc::doorbell_record");
static_assert(__builtin_offsetof(QueueDesc, doorbell) == 32, "offset of QueueDesc::doorbell");
static_assert(__builtin_offsetof(QueueDesc, mask) == 40, "offset of QueueDesc::mask");
static_assert(__builtin_offsetof(QueueDesc, send_mask) == 44, "offset of QueueDesc::send_mask");
static_assert(__builtin_offsetof(QueueDesc, completion_mask) == 48, "offset of QueueDesc::completion_mask");
static_assert(__builtin_offsetof(QueueDesc, send_shift) == 52, "offset of QueueDesc::send_shift");
static_assert(__builtin_offsetof(QueueDesc, completion_shift) == 56, "offset of QueueDesc::completion_shift");
static_assert(__builtin_offsetof(QueueDesc, send_start) == 60, "offset of QueueDesc::send_start");
static_assert(__builtin_offsetof(QueueDesc, completion_start) == 64, "offset of QueueDesc::completion_start");
static_assert(__builtin_offsetof(QueueDesc, flags) == 68, "offset of QueueDesc::flags");
static_assert(__builtin_offsetof(QueueDesc, state) == 72, "offset of QueueDesc::state");
static_assert(__builtin_offsetof(QueueDesc, records) == 80, "offset of QueueDesc::records");
static_assert(__builtin_offsetof(QueueDesc, completion_produced) == 88, "offset of QueueDesc::completion_produced");
static_assert(__builtin_offsetof(QueueDesc, completion_consumed) == 96, "offset of QueueDesc::completion_consumed");
static_assert(__builtin_offsetof(QueueDesc, mended) == 104, "offset of QueueDesc::mended");
static_assert(__builtin_offsetof(QueueDesc, reserved) == 108, "offset of QueueDesc::reserved");
static_assert(__builtin_offsetof(QueueDesc, frame_keys) == 112, "offset of QueueDesc::frame_keys");
static_assert(__builtin_offsetof(QueueDesc, reserved_tail) == 120, "offset of QueueDesc::reserved_tail");
static_assert(__builtin_offsetof(QueueState, reserved) == 0, "offset of QueueState::reserved");
static_assert(__builtin_offsetof(QueueState, pad0) == 8, "offset of QueueState::pad0");
static_assert(__builtin_offsetof(QueueState, written) == 128, "offset of QueueState::written");
static_assert(__builtin_offsetof(QueueState, pad1) == 136, "offset of QueueState::pad1");
static_assert(__builtin_offsetof(QueueState, ringer) == 256, "offset of QueueState::ringer");
static_assert(__builtin_offsetof(QueueState, failed) == 260, "offset of QueueState::failed");
static_assert(__builtin_offsetof(QueueState, posted) == 264, "offset of QueueState::posted");
static_assert(__builtin_offsetof(QueueState, pad2) == 272, "offset of QueueState::pad2");
static_assert(__builtin_offsetof(QueueState, cursor) == 384, "offset of QueueState::cursor");
static_assert(__builtin_offsetof(QueueState, answered) == 392, "offset of QueueState::answered");
static_assert(__builtin_offsetof(QueueState, silent) == 396, "offset of QueueState::silent");
static_assert(__builtin_offsetof(QueueState, pad3) == 400, "offset of QueueState::pad3");
static_assert(__builtin_offsetof(RequestRecord, state) == 0, "offset of RequestRecord::state");
static_assert(__builtin_offsetof(RequestRecord, page_id) == 8, "offset of RequestRecord::page_id");
static_assert(__builtin_offsetof(RequestRecord, frame) == 16, "offset of RequestRecord::frame");
static_assert(__builtin_offsetof(RequestRecord, kind) == 20, "offset of RequestRecord::kind");
static_assert(__builtin_offsetof(RequestRecord, pins) == 24, "offset of RequestRecord::pins");
static_assert(__builtin_offsetof(RequestRecord, token) == 28, "offset of RequestRecord::token");
static_assert(__builtin_offsetof(ArrayDesc, words) == 0, "offset of ArrayDesc::words");
static_assert(__builtin_offsetof(ArrayDesc, frames) == 8, "offset of ArrayDesc::frames");
static_assert(__builtin_offsetof(ArrayDesc, length) == 16, "offset of ArrayDesc::length");
static_assert(__builtin_offsetof(ArrayDesc, vm) == 24, "offset of ArrayDesc::vm");
static_assert(__builtin_offsetof(ArrayDesc, home) == 32, "offset of ArrayDesc::home");
static_assert(__builtin_offsetof(ArrayDesc, bytes) == 40, "offset of ArrayDesc::bytes");
static_assert(__builtin_offsetof(ArrayDesc, page_shift) == 48, "offset of ArrayDesc::page_shift");
static_assert(__builtin_offsetof(ArrayDesc, region) == 52, "offset of ArrayDesc::region");
static_assert(__builtin_offsetof(ArrayDesc, offset_mask) == 56, "offset of ArrayDesc::offset_mask");
static_assert(__builtin_offsetof(ArrayDesc, frame_scale) == 60, "offset of ArrayDesc::frame_scale");
static_assert(__builtin_offsetof(RegionDesc, words) == 0, "offset of RegionDesc::words");
static_assert(__builtin_offsetof(RegionDesc, bytes) == 8, "offset of RegionDesc::bytes");
static_assert(__builtin_offsetof(RegionDesc, pages) == 16, "offset of RegionDesc::pages");
static_assert(__builtin_offsetof(RegionDesc, stripes) == 24, "offset of RegionDesc::stripes");
static_assert(__builtin_offsetof(RegionDesc, homes) == 32, "offset of RegionDesc::homes");
static_assert(__builtin_offsetof(RegionDesc, flags) == 36, "offset of RegionDesc::flags");
static_assert(__builtin_offsetof(RegionDesc, frames) == 40, "offset of RegionDesc::frames");
static_assert(__builtin_offsetof(RegionDesc, home) == 48, "offset of RegionDesc::home");
static_assert(__builtin_offsetof(RegionDesc, nics) == 56, "offset of RegionDesc::nics");
static_assert(__builtin_offsetof(RegionDesc, backed_off_until) == 60, "offset of RegionDesc::backed_off_until");
static_assert(__builtin_offsetof(RegionDesc, stale) == 64, "offset of RegionDesc::stale");
static_assert(__builtin_offsetof(RegionDesc, stale_words) == 72, "offset of RegionDesc::stale_words");
static_assert(__builtin_offsetof(RegionDesc, joins) == 80, "offset of RegionDesc::joins");
static_assert(__builtin_offsetof(RegionDesc, checksums) == 88, "offset of RegionDesc::checksums");
static_assert(__builtin_offsetof(RegionDesc, replicas) == 96, "offset of RegionDesc::replicas");
static_assert(__builtin_offsetof(RegionDesc, pad) == 100, "offset of RegionDesc::pad");
static_assert(__builtin_offsetof(RegionDesc, homes_reciprocal) == 104, "offset of RegionDesc::homes_reciprocal");
static_assert(__builtin_offsetof(RegionDesc, victims) == 112, "offset of RegionDesc::victims");
static_assert(__builtin_offsetof(RegionDesc, reserved) == 120, "offset of RegionDesc::reserved");
static_assert(__builtin_offsetof(VictimsDesc, free) == 0, "offset of VictimsDesc::free");
static_assert(__builtin_offsetof(VictimsDesc, chunks) == 32, "offset of VictimsDesc::chunks");
static_assert(__builtin_offsetof(VictimsDesc, lent) == 40, "offset of VictimsDesc::lent");
static_assert(__builtin_offsetof(VictimsDesc, writers) == 48, "offset of VictimsDesc::writers");
static_assert(__builtin_offsetof(VictimsDesc, chunk_shift) == 56, "offset of VictimsDesc::chunk_shift");
static_assert(__builtin_offsetof(VictimsDesc, spare_min) == 60, "offset of VictimsDesc::spare_min");
static_assert(__builtin_offsetof(VictimsDesc, slots_kept) == 64, "offset of VictimsDesc::slots_kept");
static_assert(__builtin_offsetof(VictimsDesc, keeps) == 72, "offset of VictimsDesc::keeps");
static_assert(__builtin_offsetof(VictimsDesc, age_shift) == 76, "offset of VictimsDesc::age_shift");
static_assert(__builtin_offsetof(VictimsDesc, slot_pages) == 80, "offset of VictimsDesc::slot_pages");
static_assert(__builtin_offsetof(VictimsDesc, slot_uses) == 88, "offset of VictimsDesc::slot_uses");
static_assert(__builtin_offsetof(VictimsDesc, reserved) == 96, "offset of VictimsDesc::reserved");
static_assert(__builtin_offsetof(TableHead, cost) == 0, "offset of TableHead::cost");
static_assert(__builtin_offsetof(TableHead, spent) == 24, "offset of TableHead::spent");
static_assert(__builtin_offsetof(TableHead, rule) == 32, "offset of TableHead::rule");
static_assert(__builtin_offsetof(TableHead, period_shift) == 36, "offset of TableHead::period_shift");
static_assert(__builtin_offsetof(TableHead, sampling) == 40, "offset of TableHead::sampling");
static_assert(__builtin_offsetof(TableHead, hands) == 48, "offset of TableHead::hands");
static_assert(__builtin_offsetof(TableHead, scattered_read) == 60, "offset of TableHead::scattered_read");
static_assert(__builtin_offsetof(TableHead, chunk_cost) == 64, "offset of TableHead::chunk_cost");
static_assert(__builtin_offsetof(TableHead, near_read) == 68, "offset of TableHead::near_read");
static_assert(__builtin_offsetof(TableHead, page_chunks) == 72, "offset of TableHead::page_chunks");
static_assert(__builtin_offsetof(TableHead, granules) == 80, "offset of TableHead::granules");
static_assert(__builtin_offsetof(TableHead, streams) == 1104, "offset of TableHead::streams");
static_assert(__builtin_offsetof(TableHead, looks) == 5200, "offset of TableHead::looks");
static_assert(__builtin_offsetof(TableHead, reserved) == 5216, "offset of TableHead::reserved");
static_assert(__builtin_offsetof(TableHead, absent) == 5240, "offset of TableHead::absent");
static_assert(__builtin_offsetof(StreamState, walk) == 0, "offset of StreamState::walk");
static_assert(__builtin_offsetof(StreamState, ended) == 8, "offset of StreamState::ended");
static_assert(__builtin_offsetof(StreamState, took) == 12, "offset of StreamState::took");
static_assert(__builtin_offsetof(FillState, head) == 0, "offset of FillState::head");
static_assert(__builtin_offsetof(FillState, done) == 8, "offset of FillState::done");
static_assert(__builtin_offsetof(FillState, chunks) == 12, "offset of FillState::chunks");
static_assert(__builtin_offsetof(FillState, page_id) == 16, "offset of FillState::page_id");
static_assert(__builtin_offsetof(FillState, frame) == 24, "offset of FillState::frame");
static_assert(__builtin_offsetof(FillState, home) == 32, "offset of FillState::home");
static_assert(__builtin_offsetof(FillState, bytes) == 40, "offset of FillState::bytes");
static_assert(__builtin_offsetof(FillState, taken) == 44, "offset of FillState::taken");
static_assert(__builtin_offsetof(FillState, reserved) == 48, "offset of FillState::reserved");
static_assert(__builtin_offsetof(StripeDesc, home) == 0, "offset of StripeDesc::home");
static_assert(__builtin_offsetof(StripeDesc, frame_keys) == 8, "offset of StripeDesc::frame_keys");
static_assert(__builtin_offsetof(StripeDesc, rkey) == 16, "offset of StripeDesc::rkey");
static_assert(__builtin_offsetof(StripeDesc, queue_first) == 20, "offset of StripeDesc::queue_first");
static_assert(__builtin_offsetof(StripeDesc, queue_count) == 24, "offset of StripeDesc::queue_count");
static_assert(__builtin_offsetof(StripeDesc, flags) == 28, "offset of StripeDesc::flags");
static_assert(__builtin_offsetof(VmDesc, layout_version) == 0, "offset of VmDesc::layout_version");
static_assert(__builtin_offsetof(VmDesc, page_shift) == 4, "offset of VmDesc::page_shift");
static_assert(__builtin_offsetof(VmDesc, frames) == 8, "offset of VmDesc::frames");
static_assert(__builtin_offsetof(VmDesc, pool) == 16, "offset of VmDesc::pool");
static_assert(__builtin_offsetof(VmDesc, frame_pages) == 48, "offset of VmDesc::frame_pages");
static_assert(__builtin_offsetof(VmDesc, regions) == 56, "offset of VmDesc::regions");
static_assert(__builtin_offsetof(VmDesc, region_count) == 64, "offset of VmDesc::region_count");
static_assert(__builtin_offsetof(VmDesc, queue_count) == 68, "offset of VmDesc::queue_count");
static_assert(__builtin_offsetof(VmDesc, queues) == 72, "offset of VmDesc::queues");
static_assert(__builtin_offsetof(VmDesc, counters) == 80, "offset of VmDesc::counters");
static_assert(__builtin_offsetof(VmDesc, counter_shards) == 88, "offset of VmDesc::counter_shards");
static_assert(__builtin_offsetof(VmDesc, queue_groups) == 92, "offset of VmDesc::queue_groups");
static_assert(__builtin_offsetof(VmDesc, latencies) == 96, "offset of VmDesc::latencies");
static_assert(__builtin_offsetof(VmDesc, wait_limit_ns) == 104, "offset of VmDesc::wait_limit_ns");
static_assert(__builtin_offsetof(VmDesc, fills) == 112, "offset of VmDesc::fills");
static_assert(__builtin_offsetof(VmDesc, fill_count) == 120, "offset of VmDesc::fill_count");
static_assert(__builtin_offsetof(VmDesc, ticks_per_us) == 124, "offset of VmDesc::ticks_per_us");
static_assert(__builtin_offsetof(Counters, missed_lanes) == 0, "offset of Counters::missed_lanes");
static_assert(__builtin_offsetof(Counters, faults) == 8, "offset of Counters::faults");
static_assert(__builtin_offsetof(Counters, coalesced) == 16, "offset of Counters::coalesced");
static_assert(__builtin_offsetof(Counters, pages_fetched) == 24, "offset of Counters::pages_fetched");
static_assert(__builtin_offsetof(Counters, pages_written_back) == 32, "offset of Counters::pages_written_back");
static_assert(__builtin_offsetof(Counters, bytes_fetched) == 40, "offset of Counters::bytes_fetched");
static_assert(__builtin_offsetof(Counters, bytes_written_back) == 48, "offset of Counters::bytes_written_back");
static_assert(__builtin_offsetof(Counters, evictions) == 56, "offset of Counters::evictions");
static_assert(__builtin_offsetof(Counters, prefetches) == 64, "offset of Counters::prefetches");
static_assert(__builtin_offsetof(Counters, doorbells) == 72, "offset of Counters::doorbells");
static_assert(__builtin_offsetof(Counters, requests) == 80, "offset of Counters::requests");
static_assert(__builtin_offsetof(Counters, helped) == 88, "offset of Counters::helped");
static_assert(__builtin_offsetof(Counters, errors) == 96, "offset of Counters::errors");
static_assert(__builtin_offsetof(Counters, pool_dry) == 104, "offset of Counters::pool_dry");
static_assert(__builtin_offsetof(Counters, queue_full) == 112, "offset of Counters::queue_full");
static_assert(__builtin_offsetof(Counters, pages_failed) == 120, "offset of Counters::pages_failed");
static_assert(__builtin_offsetof(Counters, pages_corrupt) == 128, "offset of Counters::pages_corrupt");
static_assert(__builtin_offsetof(Counters, replicas_missed) == 136, "offset of Counters::replicas_missed");
static_assert(__builtin_offsetof(Counters, replicas_mended) == 144, "offset of Counters::replicas_mended");
static_assert(__builtin_offsetof(Counters, chunks_in_place) == 152, "offset of Counters::chunks_in_place");
static_assert(__builtin_offsetof(Counters, admissions) == 160, "offset of Counters::admissions");
static_assert(__builtin_offsetof(Counters, displacements) == 168, "offset of Counters::displacements");
static_assert(__builtin_offsetof(Counters, bytes_stored_in_place) == 176, "offset of Counters::bytes_stored_in_place");
static_assert(__builtin_offsetof(Counters, read_ahead) == 184, "offset of Counters::read_ahead");
static_assert(__builtin_offsetof(Counters, pages_overwritten) == 192, "offset of Counters::pages_overwritten");
static_assert(__builtin_offsetof(Counters, victims_copied) == 200, "offset of Counters::victims_copied");
static_assert(__builtin_offsetof(Counters, victims_fetched) == 208, "offset of Counters::victims_fetched");
static_assert(__builtin_offsetof(Counters, victims_lost) == 216, "offset of Counters::victims_lost");
static_assert(__builtin_offsetof(Counters, broadcast_stores) == 224, "offset of Counters::broadcast_stores");
static_assert(__builtin_offsetof(Counters, broadcast_lines) == 232, "offset of Counters::broadcast_lines");
static_assert(__builtin_offsetof(Counters, victims_displaced) == 240, "offset of Counters::victims_displaced");
static_assert(__builtin_offsetof(Counters, pad) == 248, "offset of Counters::pad");
static_assert(__builtin_offsetof(LatencyHistogram, buckets) == 0, "offset of LatencyHistogram::buckets");
static_assert(__builtin_offsetof(PoolDesc, state) == 0, "offset of PoolDesc::state");
static_assert(__builtin_offsetof(PoolDesc, ring) == 8, "offset of PoolDesc::ring");
static_assert(__builtin_offsetof(PoolDesc, reciprocal) == 16, "offset of PoolDesc::reciprocal");
static_assert(__builtin_offsetof(PoolDesc, count) == 24, "offset of PoolDesc::count");
static_assert(__builtin_offsetof(PoolDesc, pad) == 28, "offset of PoolDesc::pad");
static_assert(__builtin_offsetof(PoolState, available) == 0, "offset of PoolState::available");
static_assert(__builtin_offsetof(PoolState, pad0) == 8, "offset of PoolState::pad0");
static_assert(__builtin_offsetof(PoolState, head) == 128, "offset of PoolState::head");
static_assert(__builtin_offsetof(PoolState, pad1) == 136, "offset of PoolState::pad1");
static_assert(__builtin_offsetof(PoolState, tail) == 256, "offset of PoolState::tail");
static_assert(__builtin_offsetof(PoolState, pad2) == 264, "offset of PoolState::pad2");
static_assert(__builtin_offsetof(PoolState, hand) == 384, "offset of PoolState::hand");
static_assert(__builtin_offsetof(PoolState, turnover) == 392, "offset of PoolState::turnover");
static_assert(__builtin_offsetof(PoolState, spared) == 400, "offset of PoolState::spared");
static_assert(__builtin_offsetof(PoolState, limit) == 408, "offset of PoolState::limit");
static_assert(__builtin_offsetof(PoolState, pad3) == 416, "offset of PoolState::pad3");
static_assert(__builtin_offsetof(PoolState, change) == 512, "offset of PoolState::change");
static_assert(__builtin_offsetof(PoolState, change_left) == 520, "offset of PoolState::change_left");
static_assert(__builtin_offsetof(PoolState, change_hand) == 528, "offset of PoolState::change_hand");
static_assert(__builtin_offsetof(PoolState, helpers) == 536, "offset of PoolState::helpers");
static_assert(__builtin_offsetof(PoolState, frames_low) == 544, "offset of PoolState::frames_low");
static_assert(__builtin_offsetof(PoolState, pad4) == 552, "offset of PoolState::pad4");
static_assert(__builtin_offsetof(FaultRecord, claim) == 0, "offset of FaultRecord::claim");
static_assert(__builtin_offsetof(FaultRecord, code) == 4, "offset of FaultRecord::code");
static_assert(__builtin_offsetof(FaultRecord, region) == 8, "offset of FaultRecord::region");
static_assert(__builtin_offsetof(FaultRecord, queue) == 12, "offset of FaultRecord::queue");
static_assert(__builtin_offsetof(FaultRecord, page) == 16, "offset of FaultRecord::page");
static_assert(__builtin_offsetof(FaultRecord, index) == 24, "offset of FaultRecord::index");
static_assert(__builtin_offsetof(FaultRecord, size) == 32, "offset of FaultRecord::size");
static_assert(__builtin_offsetof(FaultRecord, waited_ns) == 40, "offset of FaultRecord::waited_ns");
static_assert(__builtin_offsetof(FaultRecord, syndrome) == 48, "offset of FaultRecord::syndrome");
static_assert(__builtin_offsetof(FaultRecord, vendor_syndrome) == 52, "offset of FaultRecord::vendor_syndrome");
static_assert(__builtin_offsetof(FaultRecord, block) == 56, "offset of FaultRecord::block");
static_assert(__builtin_offsetof(FaultRecord, thread) == 64, "offset of FaultRecord::thread");
static_assert(__builtin_offsetof(FaultRecord, multiprocessor) == 68, "offset of FaultRecord::multiprocessor");
static_assert(__builtin_offsetof(FaultRecord, frames_pinned) == 72, "offset of FaultRecord::frames_pinned");
static_assert(__builtin_offsetof(FaultRecord, frames_written_back) == 76, "offset of FaultRecord::frames_written_back");
static_assert(__builtin_offsetof(FaultRecord, frames_fetching) == 80, "offset of FaultRecord::frames_fetching");
static_assert(__builtin_offsetof(FaultRecord, frames_free) == 84, "offset of FaultRecord::frames_free");
static_assert(__builtin_offsetof(FaultRecord, reserved) == 88, "offset of FaultRecord::reserved");
static_assert(__builtin_offsetof(LaunchState, vm) == 0, "offset of LaunchState::vm");
static_assert(__builtin_offsetof(LaunchState, abort) == 128, "offset of LaunchState::abort");
static_assert(__builtin_offsetof(LaunchState, later_faults) == 132, "offset of LaunchState::later_faults");
static_assert(__builtin_offsetof(LaunchState, continues) == 136, "offset of LaunchState::continues");
static_assert(__builtin_offsetof(LaunchState, pad) == 140, "offset of LaunchState::pad");
static_assert(__builtin_offsetof(LaunchState, told) == 144, "offset of LaunchState::told");
static_assert(__builtin_offsetof(LaunchState, timeline) == 152, "offset of LaunchState::timeline");
static_assert(__builtin_offsetof(LaunchState, reserved) == 160, "offset of LaunchState::reserved");
static_assert(__builtin_offsetof(LaunchState, fault) == 256, "offset of LaunchState::fault");
static_assert(__builtin_offsetof(BroadcastDesc, own) == 0, "offset of BroadcastDesc::own");
static_assert(__builtin_offsetof(BroadcastDesc, length) == 8, "offset of BroadcastDesc::length");
static_assert(__builtin_offsetof(BroadcastDesc, views) == 16, "offset of BroadcastDesc::views");
static_assert(__builtin_offsetof(BroadcastDesc, stride) == 24, "offset of BroadcastDesc::stride");
static_assert(__builtin_offsetof(BroadcastDesc, pages) == 32, "offset of BroadcastDesc::pages");
static_assert(__builtin_offsetof(BroadcastDesc, reads) == 40, "offset of BroadcastDesc::reads");
static_assert(__builtin_offsetof(BroadcastDesc, marks) == 48, "offset of BroadcastDesc::marks");
static_assert(__builtin_offsetof(BroadcastDesc, marked) == 56, "offset of BroadcastDesc::marked");
static_assert(__builtin_offsetof(BroadcastDesc, counters) == 64, "offset of BroadcastDesc::counters");
static_assert(__builtin_offsetof(BroadcastDesc, page_shift) == 72, "offset of BroadcastDesc::page_shift");
static_assert(__builtin_offsetof(BroadcastDesc, sample_mask) == 76, "offset of BroadcastDesc::sample_mask");
static_assert(__builtin_offsetof(BroadcastDesc, others) == 80, "offset of BroadcastDesc::others");
static_assert(__builtin_offsetof(BroadcastDesc, view) == 84, "offset of BroadcastDesc::view");
static_assert(__builtin_offsetof(BroadcastDesc, vm) == 88, "offset of BroadcastDesc::vm");
static_assert(__builtin_offsetof(BroadcastDesc, held_parts) == 96, "offset of BroadcastDesc::held_parts");
static_assert(__builtin_offsetof(BroadcastDesc, part_shift) == 104, "offset of BroadcastDesc::part_shift");
static_assert(__builtin_offsetof(BroadcastDesc, reserved) == 108, "offset of BroadcastDesc::reserved");
static_assert(__builtin_offsetof(BroadcastCounters, stores) == 0, "offset of BroadcastCounters::stores");
static_assert(__builtin_offsetof(BroadcastCounters, lines) == 8, "offset of BroadcastCounters::lines");
static_assert(__builtin_offsetof(BroadcastCounters, bytes) == 16, "offset of BroadcastCounters::bytes");
static_assert(__builtin_offsetof(BroadcastCounters, passed_on) == 144, "offset of BroadcastCounters::passed_on");
static_assert(__builtin_offsetof(BroadcastCounters, reserved) == 152, "offset of BroadcastCounters::reserved");
static_assert(__builtin_offsetof(TimelineEvent, number) == 0, "offset of TimelineEvent::number");
static_assert(__builtin_offsetof(TimelineEvent, page) == 8, "offset of TimelineEvent::page");
static_assert(__builtin_offsetof(TimelineEvent, at_ns) == 16, "offset of TimelineEvent::at_ns");
static_assert(__builtin_offsetof(TimelineEvent, took) == 24, "offset of TimelineEvent::took");
static_assert(__builtin_offsetof(TimelineEvent, claimed) == 28, "offset of TimelineEvent::claimed");
static_assert(__builtin_offsetof(TimelineEvent, posted) == 32, "offset of TimelineEvent::posted");
static_assert(__builtin_offsetof(TimelineEvent, arrived) == 36, "offset of TimelineEvent::arrived");
static_assert(__builtin_offsetof(TimelineEvent, kind) == 40, "offset of TimelineEvent::kind");
static_assert(__builtin_offsetof(TimelineEvent, well) == 44, "offset of TimelineEvent::well");
static_assert(__builtin_offsetof(TimelineEvent, frame) == 48, "offset of TimelineEvent::frame");
static_assert(__builtin_offsetof(TimelineEvent, queue) == 52, "offset of TimelineEvent::queue");
static_assert(__builtin_offsetof(TimelineEvent, place) == 56, "offset of TimelineEvent::place");
static_assert(__builtin_offsetof(TimelineEvent, lanes) == 60, "offset of TimelineEvent::lanes");
static_assert(__builtin_offsetof(TimelineState, head) == 0, "offset of TimelineState::head");
static_assert(__builtin_offsetof(TimelineState, tail) == 8, "offset of TimelineState::tail");
static_assert(__builtin_offsetof(TimelineState, dropped) == 16, "offset of TimelineState::dropped");
static_assert(__builtin_offsetof(TimelineState, reserved) == 24, "offset of TimelineState::reserved");
static_assert(__builtin_offsetof(TimelineDesc, state) == 0, "offset of TimelineDesc::state");
static_assert(__builtin_offsetof(TimelineDesc, events) == 8, "offset of TimelineDesc::events");
static_assert(__builtin_offsetof(TimelineDesc, mask) == 16, "offset of TimelineDesc::mask");
static_assert(__builtin_offsetof(TimelineDesc, threshold) == 20, "offset of TimelineDesc::threshold");
static_assert(__builtin_offsetof(TimelineDesc, reserved) == 24, "offset of TimelineDesc::reserved");
#endif
}  // namespace layout
}  // namespace gpuvm
