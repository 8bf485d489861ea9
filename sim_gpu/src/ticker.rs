//! The ticker: the thread that looks at real time while kernels run.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::core::Core;
use super::trap::WorkerSignals;

/// How often the ticker looks at deadlines and at workers that do not yield.
const TICK: Duration = Duration::from_millis(2);

/// The ticker thread: deadlines, and workers that one lane holds. It sleeps while nothing runs.
pub(crate) fn tick_until_shut_down(core: &Core, signals: &[Arc<WorkerSignals>]) {
    loop {
        let launches = {
            let mut running = core.running.lock();
            loop {
                if running.shut_down {
                    // A worker may still be inside a lane that never yields.
                    if signals.iter().all(|worker| worker.has_ended()) {
                        return;
                    }
                    break Vec::new();
                }
                if !running.launches.is_empty() {
                    break running.launches.clone();
                }
                core.changed.wait(&mut running);
            }
        };
        let now = Instant::now();
        for launch in launches
            .iter()
            .filter(|launch| core.options.seed.is_none() && launch.is_late(now))
        {
            launch.time_out();
            launch.try_finish();
        }
        drop(launches);
        for worker in signals {
            worker.preempt_if_stuck(core.options.preempt_after);
        }
        std::thread::sleep(TICK);
    }
}
