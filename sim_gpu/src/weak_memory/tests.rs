//! Litmus tests: what PTX forbids never happens, and what it allows does happen under some seed.

use std::collections::BTreeSet;

use super::{Access, Bytes, Operation, Order, Scope, WeakMemory, Who};

/// A little memory from address 0 on.
struct Plain(Vec<u8>);

impl Bytes for Plain {
    fn covers(&self, at: u64, bytes: u64) -> bool {
        at + bytes <= self.0.len() as u64
    }

    fn get(&self, at: u64, bytes: usize) -> u64 {
        let mut word = [0; 8];
        word[..bytes].copy_from_slice(&self.0[at as usize..at as usize + bytes]);
        u64::from_le_bytes(word)
    }

    fn set(&mut self, at: u64, bytes: usize, value: u64) {
        self.0[at as usize..at as usize + bytes].copy_from_slice(&value.to_le_bytes()[..bytes]);
    }
}

const X: u64 = 0;
const Y: u64 = 512;
const A: Who = Who { lane: 0, sm: 0 };
const B: Who = Who { lane: 1, sm: 1 };

struct Machine(WeakMemory<Plain>, u64);

impl Machine {
    fn new(seed: u64) -> Self {
        let mut model = WeakMemory::new(Plain(vec![0; 4096]), seed);
        for lane in 0..4 {
            model.start(lane);
        }
        Self(model, seed)
    }

    /// Lets some time go by, or none.
    fn wait(&mut self) {
        self.1 = self.1.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        let now = self.0.now_ns + (self.1 >> 33) % 3 * 700;
        self.0.pass(now);
    }

    fn act(&mut self, who: Who, operation: Operation, order: Order, scope: Scope, at: u64, value: u64) -> u64 {
        self.wait();
        let access = Access {
            operation,
            order,
            scope,
            at,
            bytes: 8,
        };
        self.0.access(who, access, value, 0)
    }

    fn load(&mut self, who: Who, order: Order, at: u64) -> u64 {
        self.act(who, Operation::Load, order, Scope::Gpu, at, 0)
    }

    fn store(&mut self, who: Who, order: Order, at: u64, value: u64) {
        self.act(who, Operation::Store, order, Scope::Gpu, at, value);
    }
}

/// All outcomes of a program under many seeds.
fn outcomes<T: Ord>(program: impl Fn(&mut Machine) -> T) -> BTreeSet<T> {
    (0..4000).map(|seed| program(&mut Machine::new(seed))).collect()
}

#[test]
fn a_message_arrives_whole_between_release_and_acquire_only() {
    let message = |store: Order, load: Order, data: Order| {
        outcomes(|m| {
            // The reader has a copy of the data's line.
            m.load(B, data, X);
            m.store(A, Order::Weak, X, 1);
            m.store(A, store, Y, 1);
            (m.load(B, load, Y), m.load(B, data, X))
        })
    };
    for data in [Order::Weak, Order::Relaxed] {
        assert!(!message(Order::Release, Order::Acquire, data).contains(&(1, 0)));
        assert!(
            message(Order::Relaxed, Order::Acquire, data).contains(&(1, 0)),
            "no release"
        );
        assert!(
            message(Order::Release, Order::Relaxed, data).contains(&(1, 0)),
            "no acquire"
        );
    }
    assert!(message(Order::Release, Order::Acquire, Order::Weak).contains(&(0, 0)));
}

#[test]
fn fences_order_as_releases_and_acquires_do() {
    let message = |first: bool, second: bool| {
        outcomes(|m| {
            m.load(B, Order::Weak, X);
            m.store(A, Order::Weak, X, 1);
            if first {
                m.0.fence(A, Order::AcqRel, Scope::Gpu);
            }
            m.store(A, Order::Relaxed, Y, 1);
            let flag = m.load(B, Order::Relaxed, Y);
            if second {
                m.0.fence(B, Order::AcqRel, Scope::Gpu);
            }
            (flag, m.load(B, Order::Weak, X))
        })
    };
    assert!(!message(true, true).contains(&(1, 0)));
    assert!(message(true, false).contains(&(1, 0)));
    assert!(message(false, true).contains(&(1, 0)));
}

#[test]
fn only_sequentially_consistent_fences_stop_store_buffering() {
    let buffering = |order: Option<Order>| {
        outcomes(|m| {
            m.store(A, Order::Release, X, 1);
            m.store(B, Order::Release, Y, 1);
            for who in [A, B] {
                if let Some(order) = order {
                    m.0.fence(who, order, Scope::Gpu);
                }
            }
            (m.load(A, Order::Acquire, Y), m.load(B, Order::Acquire, X))
        })
    };
    assert!(!buffering(Some(Order::Sc)).contains(&(0, 0)));
    assert!(buffering(Some(Order::AcqRel)).contains(&(0, 0)));
    assert!(buffering(None).contains(&(0, 0)));
}

#[test]
fn one_word_never_steps_back_and_a_lane_sees_its_own_stores() {
    let seen = outcomes(|m| {
        m.store(A, Order::Relaxed, X, 1);
        m.store(A, Order::Relaxed, X, 2);
        let first = m.load(B, Order::Relaxed, X);
        let own = m.load(A, Order::Weak, X);
        m.wait();
        let second = m.load(B, Order::Relaxed, X);
        assert!(first <= second && own == 2, "{first} {second} {own}");
        m.act(B, Operation::Add, Order::Relaxed, Scope::Gpu, X, 10);
        let third = m.load(B, Order::Relaxed, X);
        assert!(third >= 10 || third == 1 || third == 2, "{third}");
        (first, second)
    });
    assert!(seen.contains(&(1, 2)) && seen.contains(&(0, 0)) && seen.contains(&(2, 2)));
}

#[test]
fn what_is_not_released_becomes_visible_in_bounded_time() {
    for seed in 0..500 {
        let mut m = Machine::new(seed);
        m.load(B, Order::Weak, X);
        m.store(A, Order::Relaxed, X, 1);
        let now = m.0.now_ns;
        // Performed at the latest then, and in every cache after as long again.
        m.0.pass(now + (1 << 17));
        m.0.pass(now + (1 << 18));
        assert_eq!((m.load(B, Order::Relaxed, X), m.load(B, Order::Weak, X)), (1, 1));
    }
}

#[test]
fn barriers_join_what_lanes_have_acquired() {
    let seen = outcomes(|m| {
        m.load(B, Order::Weak, X);
        m.store(A, Order::Weak, X, 1);
        for lane in [0, 1] {
            m.0.flush(lane);
        }
        m.load(A, Order::Acquire, Y);
        m.0.join([0, 1].into_iter());
        m.load(B, Order::Weak, X)
    });
    assert_eq!(seen, [1].into());
}

#[test]
fn an_engine_sees_in_order_what_system_fences_put_in_order() {
    let looked = |scope: Option<Scope>| {
        outcomes(|m| {
            m.act(A, Operation::Store, Order::Relaxed, Scope::Sys, X, 1);
            if let Some(scope) = scope {
                m.0.fence(A, Order::AcqRel, scope);
            }
            m.act(A, Operation::Store, Order::Relaxed, Scope::Sys, Y, 1);
            m.wait();
            m.0.hide();
            let seen = (m.0.memory.get(Y, 8), m.0.memory.get(X, 8));
            m.0.shown();
            seen
        })
    };
    assert!(!looked(Some(Scope::Sys)).contains(&(1, 0)));
    assert!(looked(Some(Scope::Gpu)).contains(&(1, 0)));
    assert!(looked(None).contains(&(1, 0)));
}

#[test]
fn an_engines_data_is_there_for_who_acquires_at_system_scope_and_whom_that_one_tells() {
    let told = |acquire: Order, scope: Scope, release: Order| {
        outcomes(|m| {
            m.0.hide();
            m.0.engine_copies(X, 1 << 40, 64);
            m.0.memory.set(X, 8, 7);
            m.0.shown();
            m.act(A, Operation::Load, acquire, scope, Y, 0);
            m.act(A, Operation::Add, release, Scope::Gpu, Y, 1);
            m.load(B, Order::Acquire, Y);
            m.load(B, Order::Acquire, X)
        })
    };
    assert_eq!(told(Order::Acquire, Scope::Sys, Order::Release), [7].into());
    assert!(told(Order::Relaxed, Scope::Sys, Order::Release).contains(&0));
    assert!(told(Order::Acquire, Scope::Gpu, Order::Release).contains(&0));
    assert!(told(Order::Acquire, Scope::Sys, Order::Relaxed).contains(&0));
}

#[test]
fn plain_accesses_of_a_kernel_see_and_leave_what_the_model_says() {
    let seen = outcomes(|m| {
        m.load(B, Order::Weak, X);
        // A stores 1 by its own instruction.
        m.wait();
        m.0.before_store(A, X, 8, false);
        m.0.memory.set(X, 8, 1);
        m.0.settle();
        m.0.before_load(A, X, 8, false);
        assert_eq!(m.0.memory.get(X, 8), 1, "its own");
        m.0.settle();
        m.0.before_load(B, X, 8, false);
        let other = m.0.memory.get(X, 8);
        m.0.settle();
        m.0.flush(0);
        assert_eq!(m.0.memory.get(X, 8), 1, "the truth is back");
        other
    });
    assert_eq!(seen, [0, 1].into());
}

#[test]
fn unequal_pieces_of_a_range_are_taken_and_put_back() {
    for seed in 0..200 {
        let mut m = Machine::new(seed);
        m.0.before_store(A, 3, 300, false);
        for at in 3..303 {
            m.0.memory.set(at, 1, at & 0xff);
        }
        m.0.settle();
        m.0.before_load(A, 0, 310, false);
        for at in 3..303 {
            assert_eq!(m.0.memory.get(at, 1), at & 0xff);
        }
        m.0.settle_all();
        assert!((3..303).all(|at| m.0.memory.get(at, 1) == at & 0xff) && m.0.memory.get(303, 1) == 0);
    }
}

#[test]
fn what_lanes_stored_before_a_barrier_is_seen_by_those_who_met_there() {
    let neighbour = Who { lane: 1, sm: 0 };
    let third = Who { lane: 2, sm: 0 };
    let read = |meets: bool, order: Order| {
        outcomes(|m| {
            m.store(A, order, X, 1);
            m.0.flush(A.lane);
            if meets {
                m.0.join([A.lane, neighbour.lane].into_iter());
                // What one has learned by meeting, it hands on by meeting.
                m.0.join([neighbour.lane, third.lane].into_iter());
            }
            (m.load(neighbour, order, X), m.load(third, order, X))
        })
    };
    assert_eq!(read(true, Order::Relaxed), BTreeSet::from([(1, 1)]));
    assert!(read(false, Order::Relaxed).len() > 1, "no barrier");
    // A store of a lane that was not there is not ordered by it.
    let stranger = outcomes(|m| {
        m.store(B, Order::Relaxed, X, 1);
        m.0.flush(B.lane);
        m.0.join([A.lane, third.lane].into_iter());
        m.load(A, Order::Relaxed, X)
    });
    assert_eq!(stranger, BTreeSet::from([0, 1]));
}
