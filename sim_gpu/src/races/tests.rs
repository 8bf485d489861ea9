//! What orders two accesses, and what does not.

use super::{Race, Racer, Races};
use crate::weak_memory::{Access, Operation, Order, Scope};

const DATA: u64 = 0x1000;
const FLAG: u64 = 0x2000;
/// Two lanes of different blocks, and one of the first's.
const A: Racer = Racer { lane: 0, id: 0 };
const B: Racer = Racer { lane: 32, id: 1 << 10 };
const C: Racer = Racer { lane: 1, id: 1 };

fn races() -> Races {
    let mut races = Races::default();
    for racer in [A, B, C] {
        races.start(racer);
    }
    races
}

fn act(races: &mut Races, racer: Racer, operation: Operation, order: Order, scope: Scope, at: u64) {
    let access = Access {
        operation,
        order,
        scope,
        at,
        bytes: 8,
    };
    races.access(racer, access, operation != Operation::Load);
}

fn found(races: &Races) -> Vec<Race> {
    races.found().0
}

/// A message from `A` to `other`: whether that one's weak load of it races.
fn message(other: Racer, send: impl Fn(&mut Races), receive: impl Fn(&mut Races)) -> bool {
    let mut races = races();
    races.plain(A, DATA, 8, true, false);
    send(&mut races);
    receive(&mut races);
    races.plain(other, DATA, 8, false, false);
    races.count() != 0
}

#[test]
fn a_release_that_an_acquire_reads_orders_within_both_scopes() {
    let case = |other, release: Order, to: Scope, acquire: Order, from: Scope| {
        message(
            other,
            |r| act(r, A, Operation::Store, release, to, FLAG),
            |r| act(r, other, Operation::Load, acquire, from, FLAG),
        )
    };
    assert!(!case(B, Order::Release, Scope::Gpu, Order::Acquire, Scope::Gpu));
    assert!(!case(B, Order::Release, Scope::Sys, Order::Acquire, Scope::Gpu));
    assert!(case(B, Order::Relaxed, Scope::Gpu, Order::Acquire, Scope::Gpu));
    assert!(case(B, Order::Release, Scope::Gpu, Order::Relaxed, Scope::Gpu));
    assert!(
        case(B, Order::Release, Scope::Cta, Order::Acquire, Scope::Gpu),
        "another block"
    );
    assert!(
        !case(C, Order::Release, Scope::Cta, Order::Acquire, Scope::Gpu),
        "the same block"
    );
}

#[test]
fn fences_order_with_the_accesses_around_them() {
    let case = |first: Option<Scope>, second: Option<Scope>| {
        message(
            B,
            |r| {
                if let Some(scope) = first {
                    r.fence(A, scope);
                }
                act(r, A, Operation::Store, Order::Relaxed, Scope::Gpu, FLAG);
            },
            |r| {
                act(r, B, Operation::Load, Order::Relaxed, Scope::Gpu, FLAG);
                if let Some(scope) = second {
                    r.fence(B, scope);
                }
            },
        )
    };
    assert!(!case(Some(Scope::Gpu), Some(Scope::Gpu)));
    assert!(case(None, Some(Scope::Gpu)));
    assert!(case(Some(Scope::Gpu), None));
    assert!(case(Some(Scope::Cta), Some(Scope::Gpu)));
}

#[test]
fn read_modify_writes_hand_a_release_on_and_relaxed_stores_do_not() {
    let case = |between: Operation| {
        message(
            B,
            |r| {
                act(r, A, Operation::Store, Order::Release, Scope::Gpu, FLAG);
                act(r, C, between, Order::Relaxed, Scope::Gpu, FLAG);
            },
            |r| act(r, B, Operation::Load, Order::Acquire, Scope::Gpu, FLAG),
        )
    };
    assert!(!case(Operation::Add));
    assert!(case(Operation::Store));
}

#[test]
fn barriers_launches_and_ends_order() {
    assert!(!message(C, |_| {}, |r| r.join(&[A.lane, C.lane])));
    assert!(message(B, |_| {}, |r| r.join(&[A.lane, C.lane])));
    let next = Racer { lane: 40, id: 1 << 48 };
    assert!(!message(next, |r| r.end(A), |r| r.start(next)));
}

#[test]
fn an_engine_is_ordered_by_system_scope_alone() {
    let filled_by_engine = |fence: Option<Scope>| {
        let mut races = races();
        races.plain(A, DATA, 8, true, false);
        if let Some(scope) = fence {
            races.fence(A, scope);
        }
        races.doorbell(A);
        races.engine_copies(Some(DATA), None, 64);
        // What it reads may change meanwhile: the page stays dirty then.
        races.engine_copies(None, Some(DATA), 64);
        races.count() != 0
    };
    assert!(!filled_by_engine(Some(Scope::Sys)));
    assert!(filled_by_engine(Some(Scope::Gpu)) && filled_by_engine(None));
    let read_by_lane = |order: Order, scope: Scope| {
        let mut races = races();
        races.engine_copies(Some(DATA), None, 64);
        act(&mut races, A, Operation::Load, order, scope, FLAG);
        races.plain(A, DATA, 8, false, false);
        races.count() != 0
    };
    assert!(!read_by_lane(Order::Acquire, Scope::Sys));
    assert!(read_by_lane(Order::Relaxed, Scope::Sys) && read_by_lane(Order::Acquire, Scope::Gpu));
}

#[test]
fn strong_accesses_may_meet_within_their_scopes_and_reports_name_both() {
    let meet = |scope: Scope| {
        let mut races = races();
        for racer in [A, B] {
            act(&mut races, racer, Operation::Add, Order::Relaxed, scope, DATA);
        }
        found(&races)
    };
    assert!(meet(Scope::Gpu).is_empty());
    let told = meet(Scope::Cta)[0].to_string();
    assert!(
        told.contains("block 1, thread 0") && told.contains("block 0, thread 0"),
        "{told}"
    );
    assert!(told.contains("read-modify-write at block scope"), "{told}");
    let mut races = races();
    races.plain(A, DATA, 4, true, false);
    races.plain(B, DATA + 4, 4, true, false);
    assert!(found(&races).is_empty(), "neighbours");
    races.plain(B, DATA + 2, 4, true, false);
    assert_eq!(found(&races).len(), 1);
}
