// The engine of a NIC that has the limits of hardware, or faults planted: the host says of each request when it is due
// and how it fails (docs/PROTOCOL.md, section 9). The rules are the host's alone, those of the engine on threads.
#pragma once

#include "nic_engine.cuh"

namespace gpuvm {
namespace detail {
namespace nic {

// A host that does not answer for so long has nothing to say.
constexpr u64 kJudgeNs = 10000000000ull;
// Of a plan's second word, above the host's answer: it is one of the READs in flight.
constexpr u64 kPlanReads = 1ull << 32;

// A turn that asks the host. A request is started, which decides when it is due, and executed then. Requests of a queue
// pair end in their order.
class JudgedTurn : public Turn {
  public:
    GPUVM_DEVICE JudgedTurn(const layout::NicEngine& engine, u32 place, u32 warp)
        : Turn(engine, place, warp),
          case_(reinterpret_cast<layout::NicCase*>(engine.cases) + warp),
          plans_(reinterpret_cast<pair64*>(engine.plans) + u64{place} * layout::NIC_IN_FLIGHT) {
        const pair64* parts = reinterpret_cast<const pair64*>(queue_);
        pair64 starts = ld_relaxed_sys_v2(parts + 6), ends = ld_relaxed_sys_v2(parts + 7);
        started_ = starts.lo;
        begun_ = starts.hi;
        ended_ = ends.lo;
        reads_ = ends.hi;
    }

    // Whether anything was done. What waits for its time in an engine that ends waits no longer.
    GPUVM_DEVICE bool take(bool ends) {
        look_at_doorbell();
        u64 now = of_first(time_ns());
        bool any = false;
        for (u32 n = 0; n < kRequestsATurn && moved_ < kBytesATurn && head_ != target_; ++n) {
            bool waits = begun_ != ended_;
            pair64 plan{0, 0};
            if (waits) plan = load_for_all(plans_ + ended_ % layout::NIC_IN_FLIGHT);
            if (state_ == layout::NIC_ERROR || (waits && (ends || plan.lo <= now)))
                end_next(plan, waits, now);
            else if (started_ == target_ || !start_next(now))
                break;
            any = true;
        }
        store();
        if (lane_id() == 0) {
            st_relaxed_gpu(&queue_->started, started_);
            st_relaxed_gpu(&queue_->begun, begun_);
            st_relaxed_gpu(&queue_->ended, ended_);
            st_relaxed_gpu(&queue_->reads, reads_);
        }
        return any;
    }

  private:
    // Asks the host, and returns when the request is due and the host's answer.
    GPUVM_DEVICE pair64 ask(u32 kind, const RequestAt* request, u64 now) {
        u32 units = request ? request->units : 0, is_answered = answers();
        for (u32 n = 0; n < units; ++n) {
            pair64 unit = request->unit(n);
            if (lane_id() == 0) st_relaxed_sys_v2(reinterpret_cast<pair64*>(case_->request) + n, unit);
        }
        u32 said = 0;
        if (lane_id() == 0) {
            st_relaxed_sys(&case_->kind, kind);
            st_relaxed_sys(&case_->units, units);
            st_relaxed_sys(&case_->is_answered, is_answered);
            st_relaxed_sys(&case_->now, now);
            u32 number = ld_relaxed_sys(&case_->asked) + 1;
            // Release: the question comes before its number, which the host loads with acquire.
            st_release_sys(&case_->asked, number);
            // Acquire: pairs with the host's release behind its answer.
            while (!(said = ld_acquire_sys(&case_->answered) == number) && time_ns() - now < kJudgeNs) sleep_ns(200);
        }
        __syncwarp();
        if (!of_first(said)) return pair64{now, 0};
        return pair64{of_first(ld_relaxed_sys(&case_->due)), of_first(ld_relaxed_sys(&case_->answer))};
    }

    // Starts the next request; false where it has to wait for others.
    GPUVM_DEVICE bool start_next(u64 now) {
        if (begun_ - ended_ >= layout::NIC_IN_FLIGHT) return false;
        RequestAt request(send_, send_mask(), started_);
        Found found = find(request, started_);
        pair64 plan{now, found.refused.vendor << 8 | found.refused.syndrome};
        if (!found.refused.syndrome) {
            bool reads = request.reads_or_swaps();
            if (reads_ && (request.fenced() || (reads && reads_ >= engine_.reads_max))) return false;
            plan = ask(layout::NIC_CASE_REQUEST, &request, now);
            if (plan.hi & layout::NIC_ANSWER_BREAKS) {
                // Nobody is told but by what is flushed.
                break_down();
                return true;
            }
            reads_ += reads;
            if (reads) plan.hi |= kPlanReads;
        }
        if (lane_id() == 0) st_relaxed_sys_v2(plans_ + begun_ % layout::NIC_IN_FLIGHT, plan);
        __syncwarp();
        ++begun_;
        started_ += found.refused.syndrome ? 1 : found.blocks;
        return true;
    }

    // Executes the oldest request, by its plan if it was started.
    GPUVM_DEVICE void end_next(const pair64& plan, bool waits, u64 now) {
        u32 answer = static_cast<u32>(plan.hi);
        ended_ += waits;
        if (plan.hi & kPlanReads) --reads_;
        Sentence sentence{Failure{answer & 0xff, answer >> 8 & 0xff}, (answer & layout::NIC_ANSWER_LOSES) != 0};
        if (execute_next(sentence)) ask(layout::NIC_CASE_LOST, nullptr, now);
        // What is flushed was perhaps never started.
        if (begun_ == ended_) started_ = head_;
    }

    layout::NicCase* case_;
    pair64* plans_;
    u64 started_, begun_, ended_, reads_;
};

}  // namespace nic
}  // namespace detail
}  // namespace gpuvm
