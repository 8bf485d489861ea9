//! The virtual memory as the device library sees it: frames, pool, clock, regions, counters.

use bytemuck::{Pod, Zeroable};

use crate::{facts::shared_layout, pool::PoolDesc};

/// Smallest page: 4 KiB.
pub const PAGE_BYTES_MIN: u64 = 4 << 10;
/// Largest page: 2 MiB.
pub const PAGE_BYTES_MAX: u64 = 2 << 20;

/// Device code of a program: lanes copy pages themselves.
pub const FEATURE_DIRECT: u32 = 1;
/// Device code of a program: lanes have NICs move pages.
pub const FEATURE_QUEUED: u32 = 2;
/// Device code of a program: regions with replicas and checksums. Of [`FEATURE_QUEUED`].
pub const FEATURE_RELIABLE: u32 = 4;
/// Device code of a program: copies of pages at neighbour GPUs. Of [`FEATURE_DIRECT`].
pub const FEATURE_VICTIMS: u32 = 8;
/// Device code of a program: frames whose number changes.
pub const FEATURE_RESIZABLE: u32 = 16;
/// All of these: what a virtual memory may need.
pub const FEATURES_ALL: u32 = 31;
/// Device code of a program: single faults and what else lanes note in a timeline, where there is one. No virtual memory needs it.
pub const FEATURE_TIMELINE: u32 = 32;

/// The region is never written: its array type has no stores, and no page of it is ever dirty.
pub const REGION_READ_ONLY: u32 = 1;
/// The region's slot in the table is in use.
pub const REGION_LIVE: u32 = 2;
/// Every page has a frame of the region's own, and is never evicted.
pub const REGION_NEVER_EVICTED: u32 = 4;
/// Each page has two homes: see [`RegionDesc::stale`].
pub const REGION_REPLICATED: u32 = 8;
/// Each page has a checksum: see [`RegionDesc::checksums`].
pub const REGION_CHECKED: u32 = 16;
/// Bit of [`RegionDesc::flags`]: pages leave their frames as if they had not been used, and those of this kind before others when one
/// of them comes.
pub const REGION_READ_ONCE: u32 = 64;
/// Position of the region's rank in [`RegionDesc::flags`]: its pages leave when no page of a lower rank can. See `PoolState::spared`.
pub const REGION_RANK_SHIFT: u32 = 16;
/// The highest rank.
pub const REGION_RANK_MAX: u32 = 7;
/// Bit of [`RegionDesc::flags`]: pages are used in ascending order, so that the first fault of a walk reads ahead.
pub const REGION_ASCENDING: u32 = 256;
/// Bit of [`RegionDesc::flags`]: nothing is read ahead.
pub const REGION_RANDOM: u32 = 1024;
/// Bit of [`RegionDesc::flags`]: the slots at neighbours are places where launches read pages that they look up. No page goes there when it
/// leaves its frame, and none names one while launches fetch.
pub const REGION_PLACES: u32 = 2048;
/// Homes that a page of a replicated region has.
pub const REPLICAS_MAX: u32 = 2;
/// Bit of [`StripeDesc::flags`]: what the stripe held is gone for good, though its queue pairs may work.
pub const STRIPE_LOST: u32 = 1;
/// Bit of [`RegionDesc::joins`] words: the WRITE to replica 0 has not ended. Replica 1's is the next bit.
pub const JOIN_PENDING: u32 = 1;
/// Bit of [`RegionDesc::joins`] words: the WRITE to replica 0 is to be repeated. Replica 1's is the next bit.
pub const JOIN_REPEAT: u32 = 4;
/// Bit of [`ArrayDesc::region`]: the region is never evicted, so words and data may be read by weak loads.
pub const ARRAY_NEVER_EVICTED: u32 = 0x8000_0000;
/// Bit of [`ArrayDesc::region`]: a page without a frame may be read at its home, which lanes reach by loads and which begins at a
/// multiple of 16 bytes.
pub const ARRAY_IN_PLACE: u32 = 0x4000_0000;
/// Bit of [`ArrayDesc::region`], with [`ARRAY_IN_PLACE`]: a page that is read is fetched while frames are free.
pub const ARRAY_FETCH_WHILE_FREE: u32 = 0x2000_0000;
/// Bit of [`ArrayDesc::region`], with [`ARRAY_FETCH_WHILE_FREE`]: when no frame is free, what a read does with a page without a frame
/// follows from the rules that compete in the region's [`TableHead`].
pub const ARRAY_DUELS: u32 = 0x1000_0000;
/// Bit of [`ArrayDesc::region`], with [`ARRAY_IN_PLACE`]: kernels write the region, so a read at the home must be followed by a second
/// look at the page's entry.
pub const ARRAY_HOME_CHANGES: u32 = 0x0800_0000;
/// Bit of [`ArrayDesc::region`]: stores to a page without a frame go to its home, which lanes reach by stores and which begins at a
/// multiple of 16 bytes. All launches that are in flight together agree about it.
pub const ARRAY_STORES_IN_PLACE: u32 = 0x0400_0000;
/// Bit of [`ArrayDesc::region`]: the word of an absent page names a slot at a neighbour GPU, if any ([`VictimsDesc`]).
pub const ARRAY_VICTIMS: u32 = 0x0200_0000;
/// Bit of [`ArrayDesc::region`], with [`ARRAY_FETCH_WHILE_FREE`]: a launch whose arrays all have it looks up where pages are. Lanes do
/// not look at it.
pub const ARRAY_LOOKED_UP: u32 = 0x0100_0000;
/// Bit of [`LookedUpDesc::region`]: no frame is free, so of the accesses to pages at home a sample alone marks
/// them: those that are used often are marked more often.
pub const ARRAY_SAMPLED: u32 = 0x0080_0000;
/// Bit of [`RegionDesc::flags`]: as [`ARRAY_DUELS`].
pub const REGION_DUELS: u32 = 32;
/// Bit of [`RegionDesc::flags`]: as [`ARRAY_FETCH_WHILE_FREE`].
pub const REGION_FETCH_WHILE_FREE: u32 = 512;

/// Marks before a [`TableHead`], a byte a page and one more, begin this many bytes before it, or a multiple.
pub const MARKS_STEP: u64 = 128;
/// Walks that a region's page table remembers: more than warps that run through it far apart, or some are forgotten.
pub const STREAMS: u32 = 256;

/// One chunk that lanes read side by side, in [`TableHead::scattered_read`] and [`TableHead::chunk_cost`].
pub const COST_UNIT: u32 = 16;
/// Base-two logarithm of a granule of a home, which reads near each other share: 2 MiB.
pub const GRANULE_SHIFT: u32 = 21;
/// Granules whose translations a GPU is taken to know: an H200 reads at random as fast within 256 MiB as within less, and slower
/// within 1 GiB.
pub const GRANULES: u32 = 256;
/// The rules that compete: the samples of [`TableHead::cost`].
pub const PLACEMENT_RULES: u32 = 3;
/// No page displaces another. What a zeroed [`TableHead`] begins with.
pub const RULE_FIRST_COME: u32 = 0;
/// A page that is read is fetched.
pub const RULE_FETCH: u32 = 1;
/// A page is fetched once the reads of it at its home have cost as much as a fetch, and displaces one that was not used of late.
pub const RULE_FREQUENCY: u32 = 2;
/// Of this many reads at a home, less one, one asks what to do with its page: the four fields of [`TableHead::sampling`]. Each read.
pub const DRAW_ALL: u32 = 0;
/// Each page is fetched, and no read asks.
pub const DRAW_FETCH: u32 = 0x80;
/// Where the count of its reads decides about the page.
pub const DRAW_MANY: u32 = 3;
/// Where the page stays at home.
pub const DRAW_FEW: u32 = 127;
/// Bits of one of the fields.
pub const DRAW_BITS: u32 = 8;
/// Position of the block's size in [`TableHead::sampling`], of eight bits.
pub const SAMPLING_BLOCK_SHIFT: u32 = 32;
/// [`TableHead::sampling`]: pages of the sample that fetches follow the rule of the pages in no sample, for a while, since fetching cost
/// far more.
pub const SAMPLING_RESTS_BIT: u64 = 1 << 40;
/// Position of the number of the next decision in [`TableHead::sampling`], of four bits.
pub const SAMPLING_TURN_SHIFT: u32 = 44;
/// Decisions of one round: [`SAMPLING_RESTS_BIT`] goes with the first one.
pub const SAMPLING_TURNS: u32 = 16;
/// The draws of [`TableHead::sampling`] whose fields are all the same, times that.
pub const DRAWS_ALIKE: u32 = 0x0101_0101;
/// The draws while frames are free and reads are scattered: pages are fetched once reads of them have cost as much.
pub const DRAWS_COUNTED: u32 = DRAW_MANY * DRAWS_ALIKE;
/// The draws where all pages stay at home.
pub const DRAWS_AT_HOME: u32 = DRAW_FEW * DRAWS_ALIKE;
/// Base-two logarithm of the largest page that is there before a read at its home would be. Of larger ones the first element is read
/// in place.
pub const SMALL_PAGE_SHIFT: u32 = 12;
/// What a field is where pages of `1 << page_shift` bytes are fetched.
pub const fn draw_fetch(page_shift: u32) -> u32 {
    if page_shift > SMALL_PAGE_SHIFT {
        DRAW_ALL
    } else {
        DRAW_FETCH
    }
}

/// Bytes of a chunk, in which lanes fill a page that is larger.
pub const FILL_CHUNK_BYTES: u32 = 8 << 10;
/// Pages larger than this are filled in chunks.
pub const FILL_PAGE_BYTES: u32 = 16 << 10;
/// Tickets of [`FillState::head`] below this are for a chunk: the most chunks that a page may have.
pub const FILL_END: u32 = 256;
const _: () = assert!(FILL_END as u64 * FILL_CHUNK_BYTES as u64 == PAGE_BYTES_MAX);
/// A ticket that is for no chunk, while the fields change; takers may add to it and never reach the generation.
pub const FILL_CLOSED: u32 = 0x8000_0000;
/// Position of the generation in [`FillState::head`].
pub const FILL_GENERATION_SHIFT: u32 = 32;

/// Position of the region in an page id.
pub const PAGE_ID_REGION_SHIFT: u32 = 44;
/// Position of the replica that a request is about, in an page id. Frames' frame_pages have none.
pub const PAGE_ID_REPLICA_SHIFT: u32 = 60;
/// Position of the "taken" mark in an page id; 0 means that the frame has no page.
pub const PAGE_ID_TAKEN_BIT: u64 = 1 << 63;
/// Instead of a page id: the frame has no memory behind it, or is about to lose it, and nothing takes it.
pub const PAGE_WITHDRAWN: u64 = 1;
/// Instead of a page id: the frame was withdrawn and has memory again; a change of the number of frames gives it to the pool.
pub const PAGE_RETURNING: u64 = 2;
/// Pages a region may have.
pub const REGION_PAGES_MAX: u64 = 1 << PAGE_ID_REGION_SHIFT;
/// Regions a virtual memory may have.
pub const REGIONS_MAX: u32 = 1 << 16;

/// A page that several NICs reach belongs to NIC `(page * NIC_HASH mod 2^64 >> 32) * nics >> 32`: one for good, so that a
/// READ never overtakes a WRITE of the same page. The multiplier is 2^63 over the golden ratio, made odd (Knuth, The Art of
/// Computer Programming, volume 3, 6.4).
pub const NIC_HASH: u64 = 0x4f1b_bcdc_bfa5_3e0b;

/// The page id of a region's page, as the table of frames and request records hold it.
pub const fn page_id(region: u32, page: u64) -> u64 {
    PAGE_ID_TAKEN_BIT | ((region as u64) << PAGE_ID_REGION_SHIFT) | page
}

/// The kernel argument behind `gpuvm::array<T>`: a view of one region, passed by value.
#[repr(C, align(16))]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct ArrayDesc {
    /// Address of the region's page table entries. Before them: a [`TableHead`].
    pub words: u64,
    /// Address of frame 0.
    pub frames: u64,
    /// Elements in the array.
    pub length: u64,
    /// Address of the launch's [`VmDesc`].
    pub vm: u64,
    /// Address of page 0 at the home when lanes copy the region's pages themselves; 0 when queue pairs do.
    pub home: u64,
    /// Exact length of the region in bytes.
    pub bytes: u64,
    /// Base-two logarithm of the page size.
    pub page_shift: u32,
    /// The region's index in the region table, with `ARRAY_*`.
    pub region: u32,
    /// Page size less one: an element's offset in its page is its byte number under this mask.
    pub offset_mask: u32,
    /// Page size over 16: the frame field of a page table entry, in place, times this is the frame's offset.
    pub frame_scale: u32,
}

/// An array of a launch whose kernel came as PTX and calls for its pages. Such a kernel has them behind a [`CalledHead`], by value, in the
/// order of their addresses.
#[repr(C, align(16))]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct CalledArray {
    /// As a kernel of gpuvm's own gets it.
    pub array: ArrayDesc,
    /// The address in the window that the kernel has for its first byte.
    pub base: u64,
    /// 1 where kernels never write it.
    pub read_only: u64,
}

/// What comes before the [`CalledArray`]s of a launch.
#[repr(C, align(16))]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct CalledHead {
    /// How many there are, one at least.
    pub count: u64,
    /// Unused.
    pub reserved: u64,
}

/// The kernel argument behind `gpuvm::array<T>` of a launch that looks pages up, in place of an [`ArrayDesc`].
#[repr(C, align(16))]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct LookedUpDesc {
    /// Address of a page's place a page: where it is, with bit 0 for a page at home. Behind the last page's one that is no one's.
    pub places: u64,
    /// Address of a mark a page, of a byte, and of one more.
    pub marks: u64,
    /// Elements in the array.
    pub length: u64,
    /// Address of the launch's [`VmDesc`].
    pub vm: u64,
    /// Where an access past the end leaves its index, in host memory.
    pub past: u64,
    /// Base-two logarithm of the page size.
    pub page_shift: u32,
    /// The region's index in the region table, with `ARRAY_*`.
    pub region: u32,
    /// Pages.
    pub pages: u32,
    /// Unused.
    pub reserved: u32,
    /// Where pages' frames follow each other as the pages do, so that `places` is the address of element 0: that of elements that are no one's.
    pub dummy: u64,
}

/// A walk of one warp through pages of a region, as its faults showed it. Hints: a lost one costs a prefetch.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct StreamState {
    /// The page of the last fault, the stride and how far was read ahead: see `Walk` in the device library.
    pub walk: u64,
    /// When the last fault ended, in the device's ticks.
    pub ended: u32,
    /// What the last fetch took, in the device's ticks.
    pub took: u32,
}

/// What stands before the words of a region's page table, and keeps them aligned.
#[repr(C, align(128))]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct TableHead {
    /// With [`REGION_DUELS`]: what misses of each rule's sample of the pages have cost of late, in chunks of 16 bytes that go over
    /// the link.
    pub cost: [u64; PLACEMENT_RULES as usize],
    /// All that was ever added to `cost`.
    pub spent: u64,
    /// The rule (`RULE_*`) of pages in no sample.
    pub rule: u32,
    /// Base-two logarithm of what the samples spend between two decisions; 0: the region does not duel.
    pub period_shift: u32,
    /// In the low half the draws: how many of the reads at a home ask what to do with their page, as `DRAW_*` by the rule whose sample
    /// the page is in, the last one for pages in none. In the high half the base-two logarithm of the pages of a block: each rule has
    /// one of them for its sample. One word, because each read at a home looks at both.
    pub sampling: u64,
    /// Where the search for a page that leaves its frame goes on, by the sample: blocks, counted on and on.
    pub hands: [u32; PLACEMENT_RULES as usize],
    /// Chunks of 16 bytes that lanes read side by side in the time of one scattered read far from recent ones, in sixteenths.
    pub scattered_read: u32,
    /// What a chunk that was read at the home has cost of late, in sixteenths of one that lanes read side by side.
    pub chunk_cost: u32,
    /// As `scattered_read`, of a read near recent ones: the GPU knows the translation of its address.
    pub near_read: u32,
    /// Address of a 64-bit count a page: chunks of 16 bytes that were read at its home, estimated from a sample of the reads. 0: nothing
    /// takes a profile.
    pub page_chunks: u64,
    /// Where the home was read of late: numbers of granules, plus one, each at its number modulo the length. 0 for none.
    pub granules: [u32; GRANULES as usize],
    /// Walks of warps through the region's pages, over queue pairs.
    pub streams: [StreamState; STREAMS as usize],
    /// How far pages that are worth a fetch have looked for one to displace: in the high half an epoch, in the low half looks in it. One
    /// word for pages of the frequency rule's sample, and one for those of none.
    pub looks: [u64; 2],
    /// Unused, to the end of the line.
    pub reserved: [u64; 3],
    /// Pages of a never-evicted region that are not resident: at 0 no access needs to look at a page's entry.
    pub absent: u64,
}

/// One region: its page table and where its pages live. Page `p` is page `p / homes` of home `p % homes`, and one NIC of
/// those that reach the home moves it, by a hash with [`NIC_HASH`].
#[repr(C, align(64))]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct RegionDesc {
    /// As [`ArrayDesc::words`].
    pub words: u64,
    /// Exact length in bytes; the last page may be shorter than the others.
    pub bytes: u64,
    /// Pages.
    pub pages: u64,
    /// Address of `replicas * homes * nics` [`StripeDesc`]s: those of one home follow each other.
    pub stripes: u64,
    /// Homes: 1, or one a memory node.
    pub homes: u32,
    /// `REGION_*`.
    pub flags: u32,
    /// Address of the frame 0 that the region's words count from.
    pub frames: u64,
    /// As [`ArrayDesc::home`].
    pub home: u64,
    /// NICs that reach each home.
    pub nics: u32,
    /// Evictors leave the region's dirty pages alone until this time, in units of 2^16 ns, since its WRITEs fail; 0: they
    /// do not. Written by lanes.
    pub backed_off_until: u32,
    /// With `REGION_REPLICATED`: address of a bitmap a replica, in words of 32 bits: pages whose copy there is not what was
    /// written back last, and is never read.
    pub stale: u64,
    /// Words of each of these bitmaps.
    pub stale_words: u64,
    /// With `REGION_REPLICATED`: address of 32 bits a page, `JOIN_*`: the WRITEs of the write-back in flight.
    pub joins: u64,
    /// With `REGION_CHECKED`: address of 32 bits a page: the CRC-32C of its copy at home, or 0 when that is not known.
    pub checksums: u64,
    /// Homes of each page: 1 or 2. The stripes of replica 1 follow those of replica 0.
    pub replicas: u32,
    /// Unused, to align.
    pub pad: u32,
    /// [`crate::reciprocal`] of `homes`.
    pub homes_reciprocal: u64,
    /// Address of the [`VictimsDesc`] where clean pages go that leave their frames; 0 when they are dropped.
    pub victims: u64,
    /// Unused, to a power of two.
    pub reserved: u64,
}

/// Bit of the frame field of an absent page's entry in a region with [`VictimsDesc`]: the page has no slot, and the field counts how often
/// it was fetched of late. The same of [`VictimsDesc::slots_kept`] and [`VictimsDesc::slot_uses`]. So slots are numbered below it, less one.
pub const USE_BIT: u32 = 1 << 27;
/// Below [`USE_BIT`]: position of the age in which the count was right. It halves with each age.
pub const USE_AGE_SHIFT: u32 = 19;
/// Slots that words can name.
pub const SLOTS_MAX: u64 = USE_BIT as u64 - 2;

/// Slots in memory that neighbour GPUs lend, each for one page that has left its frame. The word of such a page has the slot's number plus
/// one in its frame field.
#[repr(C, align(128))]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct VictimsDesc {
    /// The slots that are free.
    pub free: PoolDesc,
    /// Slots lie in chunks, each in one neighbour's memory, which takes it back as a whole. Address of the address of each chunk's first
    /// slot.
    pub chunks: u64,
    /// Address of 32 bits a chunk: 1 while it is lent. The host alone writes them: 0 at any time, 1 while no launch runs.
    pub lent: u64,
    /// Address of 32 bits a chunk: the lanes that copy pages there. The lender waits for 0 after it has written 0 to `lent`.
    pub writers: u64,
    /// Base-two logarithm of the slots of a chunk.
    pub chunk_shift: u32,
    /// With fewer free slots pages stop to keep theirs.
    pub spare_min: u32,
    /// Address of 32 bits a frame: one plus the slot that its page keeps, which has the frame's bytes; or, with [`USE_BIT`], how often the
    /// page was fetched of late; 0 for neither. It is changed by who has the frame, or the write-back mark of its page.
    pub slots_kept: u64,
    /// Whether a page that is fetched from its slot keeps it beside its frame. 0 when slots became few, until there are twice as many as
    /// `spare_min`. A hint.
    pub keeps: u32,
    /// An age ends when the hand over the slots, which is that of `free`, has moved by two to the power of this.
    pub age_shift: u32,
    /// Address of 64 bits a slot: the page id of whose word may name it, 0 for none. A hint that the word confirms.
    pub slot_pages: u64,
    /// Address of 32 bits a slot: how often its page had been fetched when it came, with [`USE_BIT`]. A hint.
    pub slot_uses: u64,
    /// Unused, to the end of the line.
    pub reserved: [u32; 8],
}

/// The filling of one large page by several warps, chunk by chunk. The page's entry holds the place in the table plus one
/// as its token.
#[repr(C, align(128))]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct FillState {
    /// Generation above, the next ticket below. The first of a page is `FILL_END - chunks`, so that a ticket alone says
    /// whether it is for a chunk, whatever page is filled through this place by the time its taker looks.
    pub head: u64,
    /// Chunks that are filled.
    pub done: u32,
    /// Chunks of the page.
    pub chunks: u32,
    /// The page, as in the table of frames.
    pub page_id: u64,
    /// Address of the page's frame.
    pub frame: u64,
    /// Address of the page at its home.
    pub home: u64,
    /// Exact length of the page in bytes.
    pub bytes: u32,
    /// Taken (1) by the warp that fills a page through this place.
    pub taken: u32,
    /// Unused, to 128 bytes.
    pub reserved: [u64; 10],
}

/// One stripe of a region: the pages of one home that one NIC moves, and the NIC's queue pairs that reach them.
#[repr(C, align(32))]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct StripeDesc {
    /// Address of the home's page 0, as the NIC's remote address.
    pub home: u64,
    /// Address of the NIC's local keys of the region's own frames, as [`crate::QueueDesc::frame_keys`] has those of the
    /// pool's; 0 when it has none.
    pub frame_keys: u64,
    /// Remote key of the home.
    pub rkey: u32,
    /// First queue pair that reaches the home.
    pub queue_first: u32,
    /// Queue pairs that reach the home.
    pub queue_count: u32,
    /// `STRIPE_*`.
    pub flags: u32,
}

/// The whole virtual memory. Nothing writes it while a kernel runs; what lanes or the host change lies behind its addresses. Each launch has a
/// copy, at the beginning of its [`LaunchState`](crate::LaunchState).
#[repr(C, align(128))]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct VmDesc {
    /// [`crate::LAYOUT_VERSION`] of the runtime.
    pub layout_version: u32,
    /// Base-two logarithm of the page size.
    pub page_shift: u32,
    /// Address of frame 0; frames follow each other.
    pub frames: u64,
    /// The frames that are free; its count is that of all frames that there may be.
    pub pool: PoolDesc,
    /// Address of a page id for each frame that there may be.
    pub frame_pages: u64,
    /// Address of `region_count` [`RegionDesc`]s.
    pub regions: u64,
    /// Slots of the region table.
    pub region_count: u32,
    /// Number of queue pairs.
    pub queue_count: u32,
    /// Address of `queue_count` [`crate::QueueDesc`]s.
    pub queues: u64,
    /// Address of `counter_shards` [`Counters`].
    pub counters: u64,
    /// Number of counter shards, a power of two.
    pub counter_shards: u32,
    /// Groups of queue pairs: the queues of one group reach the same homes.
    pub queue_groups: u32,
    /// Address of the [`LatencyHistogram`] of demand fetches.
    pub latencies: u64,
    /// Longest that a lane waits for one thing before it reports a fault, in nanoseconds.
    pub wait_limit_ns: u64,
    /// Address of `fill_count` [`FillState`]s; 0 when there are none.
    pub fills: u64,
    /// Large pages that may be filled at one time.
    pub fill_count: u32,
    /// How often `ticks()` counts in a microsecond, rounded up.
    pub ticks_per_us: u32,
}

/// What the device library counts. Several shards; the host adds them up.
#[repr(C, align(128))]
#[derive(Debug, Clone, Copy, Pod, Zeroable, Default)]
pub struct Counters {
    /// Lanes whose access found its page not resident.
    pub missed_lanes: u64,
    /// Demand fetches posted: one for every group of lanes that won a claim.
    pub faults: u64,
    /// Lanes that missed and were served by a fetch that another lane posted.
    pub coalesced: u64,
    /// Pages fetched and published, prefetches included.
    pub pages_fetched: u64,
    /// Pages whose WRITE completed.
    pub pages_written_back: u64,
    /// Bytes of completed READs.
    pub bytes_fetched: u64,
    /// Bytes of completed WRITEs.
    pub bytes_written_back: u64,
    /// Pages that left their frame.
    pub evictions: u64,
    /// Prefetches posted because a kernel asked.
    pub prefetches: u64,
    /// Doorbells rung.
    pub doorbells: u64,
    /// Requests posted.
    pub requests: u64,
    /// Completions handled by a lane that had not posted the request.
    pub helped: u64,
    /// Completions with an error.
    pub errors: u64,
    /// Times that a lane found the pool empty.
    pub pool_dry: u64,
    /// Times that a lane found every ring it may use full.
    pub queue_full: u64,
    /// Pages that a failed fetch put into the error state.
    pub pages_failed: u64,
    /// Pages that were fetched and did not have their checksum.
    pub pages_corrupt: u64,
    /// Write-backs that did not reach one of the page's two homes, which is stale there since.
    pub replicas_missed: u64,
    /// Stale copies that a write-back has repaired.
    pub replicas_repaired: u64,
    /// Chunks of 16 bytes that were read at the pages' homes, estimated from a sample of the reads.
    pub chunks_in_place: u64,
    /// Pages of regions with [`REGION_DUELS`] that a fault fetched while no frame was free.
    pub admissions: u64,
    /// Pages of regions with [`REGION_DUELS`] that left their frame for another page of their region.
    pub displacements: u64,
    /// Bytes that were stored at the pages' homes, in place.
    pub bytes_stored_in_place: u64,
    /// Prefetches that were posted because the faults of a warp came in strides.
    pub read_ahead: u64,
    /// Pages that lanes overwrote whole, so that they came to a frame without a fetch.
    pub pages_overwritten: u64,
    /// Clean pages that left their frames and were copied to a slot of a neighbour GPU. Not those that had kept their slot.
    pub victims_copied: u64,
    /// Pages that were fetched from such slots; `pages_fetched` and `bytes_fetched` have them, too.
    pub victims_fetched: u64,
    /// Pages whose slot had been taken back when they were fetched, so that they came from their home.
    pub victims_lost: u64,
    /// Stores of single lanes to broadcast arrays that went to other GPUs, estimated from a sample of the lines.
    pub broadcast_stores: u64,
    /// Lines in which those left: what was merged is one.
    pub broadcast_lines: u64,
    /// Pages that lost their slot at a neighbour GPU to a page that was fetched more often.
    pub victims_displaced: u64,
    /// Unused, to a power of two: shards lie a shift apart.
    pub pad: [[u64; 11]; 3],
}

/// Sub-buckets an octave of the latency histogram.
pub const LATENCY_SUB_BITS: u32 = 3;
/// Buckets of the latency histogram: 8 an octave, the last one open.
pub const LATENCY_BUCKETS: usize = 256;

/// Demand fetches by the time from the miss to the publication, in the device's ticks. Bucket of `n` ticks: below 16 the
/// value itself, above `8 * (octave - 2) + next three bits`.
#[repr(C, align(128))]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct LatencyHistogram {
    /// Fetches a bucket.
    pub buckets: [u64; LATENCY_BUCKETS],
}

shared_layout! {
    ArrayDesc: 64 { words: 0, frames: 8, length: 16, vm: 24, home: 32, bytes: 40, page_shift: 48, region: 52,
        offset_mask: 56, frame_scale: 60, }
    CalledArray: 80 { array: 0, base: 64, read_only: 72, }
    CalledHead: 16 { count: 0, reserved: 8, }
    LookedUpDesc: 64 { places: 0, marks: 8, length: 16, vm: 24, past: 32, page_shift: 40, region: 44, pages: 48, reserved: 52, dummy: 56, }
    RegionDesc: 128 { words: 0, bytes: 8, pages: 16, stripes: 24, homes: 32, flags: 36, frames: 40, home: 48,
        nics: 56, backed_off_until: 60, stale: 64, stale_words: 72, joins: 80, checksums: 88, replicas: 96, pad: 100,
        homes_reciprocal: 104, victims: 112, reserved: 120, }
    VictimsDesc: 128 {
        free: 0, chunks: 32, lent: 40, writers: 48, chunk_shift: 56, spare_min: 60, slots_kept: 64, keeps: 72,
        age_shift: 76, slot_pages: 80, slot_uses: 88, reserved: 96,
    }
    TableHead: 5248 { cost: 0, spent: 24, rule: 32, period_shift: 36, sampling: 40, hands: 48, scattered_read: 60, chunk_cost: 64, near_read: 68, page_chunks: 72, granules: 80, streams: 1104, looks: 5200, reserved: 5216, absent: 5240, }
    StreamState: 16 { walk: 0, ended: 8, took: 12, }
    FillState: 128 { head: 0, done: 8, chunks: 12, page_id: 16, frame: 24, home: 32, bytes: 40, taken: 44, reserved: 48, }
    StripeDesc: 32 { home: 0, frame_keys: 8, rkey: 16, queue_first: 20, queue_count: 24, flags: 28, }
    VmDesc: 128 {
        layout_version: 0, page_shift: 4, frames: 8, pool: 16, frame_pages: 48, regions: 56, region_count: 64,
        queue_count: 68, queues: 72, counters: 80, counter_shards: 88, queue_groups: 92, latencies: 96,
        wait_limit_ns: 104, fills: 112, fill_count: 120, ticks_per_us: 124,
    }
    Counters: 512 {
        missed_lanes: 0, faults: 8, coalesced: 16, pages_fetched: 24, pages_written_back: 32, bytes_fetched: 40,
        bytes_written_back: 48, evictions: 56, prefetches: 64, doorbells: 72, requests: 80, helped: 88, errors: 96,
        pool_dry: 104, queue_full: 112, pages_failed: 120, pages_corrupt: 128, replicas_missed: 136,
        replicas_repaired: 144, chunks_in_place: 152, admissions: 160, displacements: 168, bytes_stored_in_place: 176,
        read_ahead: 184, pages_overwritten: 192, victims_copied: 200, victims_fetched: 208, victims_lost: 216,
        broadcast_stores: 224, broadcast_lines: 232, victims_displaced: 240, pad: 248,
    }
    LatencyHistogram: 2048 { buckets: 0, }
}
