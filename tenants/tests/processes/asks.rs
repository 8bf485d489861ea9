//! Who is asked, what is given, and what the error says where it is not enough.

use std::sync::Arc;
use std::time::Duration;

use gpuvm_tenants::{AskError, DriverView, Keeps, LimitChange, MemoryLeft, Short, Tenant, TermsChange, tenants};
use rustix::process::Signal;

use crate::child::Process;
use crate::pool::Pool;
use crate::{HANG, MIB, Registry, ends, eventually, terms};

fn joined(registry: &Registry, pool: &Arc<Pool>, priority: i8) -> Tenant {
    Tenant::join(
        &registry.folder,
        &registry.gpu,
        terms(0, None, priority),
        Arc::clone(pool) as _,
    )
    .unwrap()
}

fn short(result: Result<gpuvm_tenants::Granted, AskError>) -> Short {
    match result {
        Err(AskError::Short(short)) => *short,
        other => panic!("{other:?}"),
    }
}

#[test]
fn processes_join_are_listed_and_leave() {
    let registry = Registry::new();
    assert!(tenants(&registry.folder, &registry.gpu.key).unwrap().is_empty());
    let one = Process::start(&registry, 3 * MIB, terms(MIB, Some(8 * MIB), 5));
    let other = Process::start(&registry, 0, terms(0, None, 0));
    let peers = tenants(&registry.folder, &registry.gpu.key).unwrap();
    let mut pids: Vec<u32> = peers.iter().map(gpuvm_tenants::Peer::pid).collect();
    pids.sort_unstable();
    let mut started = [one.pid(), other.pid()];
    started.sort_unstable();
    assert_eq!(pids, started);
    let found = peers.iter().find(|peer| peer.pid() == one.pid()).unwrap();
    let description = found.answer.as_ref().unwrap();
    assert_eq!(
        (description.holding.frames, description.holding.total()),
        (3 * MIB, 3 * MIB)
    );
    assert_eq!(description.terms, terms(MIB, Some(8 * MIB), 5));
    assert_eq!(description.total_bytes, 1 << 30);
    let program = std::env::current_exe().unwrap();
    assert_eq!(Some(description.program.as_ref()), program.file_name());
    one.leave();
    assert_eq!(registry.pids(), [other.pid()]);
    assert_eq!(registry.files().len(), 2);
    other.leave();
    assert_eq!(registry.files(), [""; 0]);
}

#[test]
fn who_has_the_lower_priority_gives_down_to_its_minimum() {
    let registry = Registry::new();
    let mut low = Process::start(&registry, 8 * MIB, terms(2 * MIB, None, -1));
    let mut equal = Process::start(&registry, 8 * MIB, terms(0, None, 0));
    let mut high = Process::start(&registry, 8 * MIB, terms(0, Some(7 * MIB), 1));
    let pool = Arc::new(Pool::default());
    let tenant = joined(&registry, &pool, 0);
    // A MiB above a limit, all but the minimum of the lower one, and what makes equals equal: 7 of 8, so nothing or half a MiB.
    let granted = tenant.ask(7 * MIB, HANG, DriverView::default).unwrap();
    pool.grow(7 * MIB);
    assert_eq!(granted.given, [(high.pid(), MIB), (low.pid(), 6 * MIB)]);
    let found = short(tenant.ask(MIB, HANG, DriverView::default));
    assert_eq!(found.available, MIB / 2);
    let keeps = |process: &Process| {
        let holder = found.holders.iter().find(|holder| holder.pid == process.pid());
        holder.unwrap().keeps.clone()
    };
    assert_eq!(keeps(&low), Keeps::Minimum);
    assert_eq!(keeps(&high), Keeps::Priority);
    assert_eq!(keeps(&equal), Keeps::Would { bytes: MIB / 2 });
    assert_eq!(
        tenant.ask(MIB / 2, HANG, DriverView::default).unwrap().given,
        [(equal.pid(), MIB / 2)]
    );
    pool.grow(MIB / 2);
    let text = tenant.ask(MIB, HANG, DriverView::default).unwrap_err().to_string();
    for part in [
        "1 MiB of GPU memory were asked for, and 0 B are available".to_owned(),
        format!("pid {} (", low.pid()),
        "holds 2 MiB in frames (minimum 2 MiB, limit none, priority -1) and keeps its minimum".to_owned(),
        "and holds no more than its share".to_owned(),
        "priority 1) and has the higher priority".to_owned(),
        "gpuvm tenants set PID --limit SIZE".to_owned(),
    ] {
        assert!(text.contains(&part), "{part}\n{text}");
    }
    let held = [&mut low, &mut equal, &mut high].map(|process| process.ask("holding"));
    let held = held.map(|line| line.split(' ').next().unwrap().parse::<u64>().unwrap());
    assert_eq!(held, [2 * MIB, 15 * MIB / 2, 7 * MIB]);
}

#[test]
fn what_is_free_is_asked_of_nobody() {
    let registry = Registry::new();
    let mut low = Process::start(&registry, 8 * MIB, terms(0, None, -1));
    let tenant = joined(&registry, &Arc::new(Pool::default()), 0);
    let total = registry.gpu.total_bytes;
    let driver = |free| DriverView {
        memory: Some(MemoryLeft { free, total }),
        by_pid: Vec::new(),
    };
    let granted = tenant.ask(4 * MIB, HANG, || driver(4 * MIB)).unwrap();
    assert_eq!(granted.given, []);
    assert!(low.ask("holding").starts_with(&format!("{} ", 8 * MIB)));
    // What is missing is asked for, and no more.
    let free = std::sync::atomic::AtomicU64::new(MIB);
    let granted = tenant.ask(4 * MIB, HANG, || {
        // Relaxed: one thread alone. The driver sees what was given at the second look.
        driver(free.swap(4 * MIB, std::sync::atomic::Ordering::Relaxed))
    });
    assert_eq!(granted.unwrap().given, [(low.pid(), 3 * MIB)]);
}

#[test]
fn who_takes_what_was_given_ends_the_asking() {
    let registry = Registry::new();
    let mut low = Process::start(&registry, 64 * MIB, terms(0, None, -1));
    let tenant = joined(&registry, &Arc::new(Pool::default()), 0);
    // Whatever is given, somebody else is faster.
    let total = registry.gpu.total_bytes;
    let driver = || DriverView {
        memory: Some(MemoryLeft { free: 0, total }),
        by_pid: vec![(7, MIB), (7, MIB), (std::process::id(), MIB)],
    };
    let found = short(tenant.ask(MIB, HANG, driver));
    assert_eq!(found.available, 0);
    assert_eq!(found.others, [(7, 2 * MIB)]);
    assert_eq!(found.unnamed, Some(total - 61 * MIB - 2 * MIB));
    assert!(low.ask("holding").starts_with(&format!("{} ", 61 * MIB)));
}

#[test]
fn an_asker_keeps_to_its_own_limit() {
    let registry = Registry::new();
    let pool = Arc::new(Pool::new(3 * MIB, 0));
    let terms = terms(0, Some(4 * MIB), 0);
    let tenant = Tenant::join(&registry.folder, &registry.gpu, terms, pool).unwrap();
    let refused = tenant.ask(2 * MIB, HANG, DriverView::default).unwrap_err();
    assert!(
        matches!(refused, AskError::OverLimit { limit, .. } if limit == 4 * MIB),
        "{refused:?}"
    );
    let text = refused.to_string();
    assert!(
        text.starts_with("2 MiB more would be above this process's memory limit of 4 MiB, of which it holds 3 MiB"),
        "{text}"
    );
    short(tenant.ask(MIB, Duration::MAX, DriverView::default));
    let refused = tenant.ask(u64::MAX, Duration::MAX, DriverView::default);
    assert!(matches!(refused, Err(AskError::OverLimit { .. })));
}

#[test]
fn a_lower_limit_shrinks_a_tenant_at_once() {
    let registry = Registry::new();
    let mut process = Process::start(&registry, 8 * MIB, terms(2 * MIB, None, 0));
    let set = |change: TermsChange| {
        let peers = tenants(&registry.folder, &registry.gpu.key).unwrap();
        peers[0].set(&change, HANG)
    };
    let limit = |bytes| TermsChange {
        limit: Some(LimitChange::Bytes(bytes)),
        ..TermsChange::default()
    };
    let changed = set(limit(3 * MIB)).unwrap();
    assert_eq!((changed.gave, changed.holding), (5 * MIB, 3 * MIB));
    assert_eq!(changed.terms, terms(2 * MIB, Some(3 * MIB), 0));
    assert_eq!(
        process.ask("holding"),
        format!("{} minimum 2 MiB, limit 3 MiB, priority 0", 3 * MIB)
    );
    let refused = set(limit(MIB)).unwrap_err().to_string();
    assert!(
        refused.contains("it refuses: the memory limit of 1 MiB is below the minimum of 2 MiB"),
        "{refused}"
    );
    let change = TermsChange {
        minimum: Some(0),
        limit: Some(LimitChange::None),
        priority: Some(-100),
    };
    assert_eq!(set(change).unwrap().terms, terms(0, None, -100));
    let wrong = TermsChange {
        priority: Some(101),
        ..TermsChange::default()
    };
    assert!(set(wrong).is_err());
    assert_eq!(
        process.ask("holding"),
        format!("{} minimum 0 B, limit none, priority -100", 3 * MIB)
    );
}

#[test]
fn two_who_ask_each_other_both_get_an_answer() {
    let registry = Registry::new();
    // Whatever one gets, the other has lost: neither may wait for the other.
    let mut one = Process::start(&registry, 64 * MIB, terms(0, None, 0));
    let mut other = Process::start(&registry, 32 * MIB, terms(0, None, 1));
    for _ in 0..50 {
        one.tell(&format!("ask {MIB}"));
        other.tell(&format!("ask {MIB}"));
        assert!(one.hear().starts_with("refused: 1 MiB"), "its priority is lower");
        assert!(other.hear().starts_with("granted by 1"));
    }
    assert!(one.ask("holding").starts_with(&format!("{} ", 14 * MIB)));
    assert!(other.ask("holding").starts_with(&format!("{} ", 82 * MIB)));
}

#[test]
fn a_tenant_that_is_stopped_is_named_with_what_the_driver_says() {
    let registry = Registry::new();
    let stopped = Process::start(&registry, 8 * MIB, terms(0, None, -1));
    stopped.signal(Signal::STOP);
    let tenant = joined(&registry, &Arc::new(Pool::default()), 0);
    let (total, pid) = (registry.gpu.total_bytes, stopped.pid());
    let driver = move || DriverView {
        memory: Some(MemoryLeft { free: 0, total }),
        by_pid: vec![(pid, 9 * MIB)],
    };
    let (tenant, found) = ends("asking one that is stopped", move || {
        let found = short(tenant.ask(MIB, HANG, driver));
        (tenant, found)
    });
    assert_eq!(found.holders.len(), 1);
    assert_eq!((found.holders[0].pid, found.holders[0].driver), (pid, Some(9 * MIB)));
    assert!(matches!(found.holders[0].keeps, Keeps::Silent { .. }), "{found:?}");
    let text = found.to_string();
    let said =
        format!("; pid {pid} does not answer (it did not answer in time), and the driver says that it holds 9 MiB;");
    assert!(text.contains(&said), "{text}");
    // It is no less a tenant, and gives once it goes on.
    stopped.signal(Signal::CONT);
    eventually("it answers again", || registry.pids().contains(&pid));
    assert_eq!(tenant.ask(MIB, HANG, DriverView::default).unwrap().given, [(pid, MIB)]);
}

#[test]
fn one_that_gives_nothing_is_passed_over() {
    let registry = Registry::new();
    let stubborn = Arc::new(Pool::stubborn(8 * MIB));
    let _stubborn = joined(&registry, &stubborn, -2);
    let low = Process::start(&registry, 8 * MIB, terms(0, None, -1));
    let tenant = joined(&registry, &Arc::new(Pool::default()), 0);
    // It holds out until the deadline of the whole request.
    let found = short(tenant.ask(MIB, Duration::from_secs(3), DriverView::default));
    let keeps = |pid| {
        found
            .holders
            .iter()
            .find(|holder| holder.pid == pid)
            .unwrap()
            .keeps
            .clone()
    };
    assert_eq!(keeps(std::process::id()), Keeps::GaveLess { asked: MIB, gave: 0 });
    assert_eq!(keeps(low.pid()), Keeps::Would { bytes: MIB });
}

#[test]
fn a_holder_is_not_called_any_more_once_its_tenant_has_left() {
    let registry = Registry::new();
    let stubborn = Arc::new(Pool::stubborn(8 * MIB));
    let leaving = joined(&registry, &stubborn, -1);
    let tenant = joined(&registry, &Arc::new(Pool::default()), 0);
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| short(tenant.ask(MIB, Duration::from_secs(3), DriverView::default)));
        eventually("it is asked", || stubborn.is_asked());
        drop(leaving);
        assert!(!stubborn.is_asked(), "it is still called");
        assert_eq!(Arc::strong_count(&stubborn), 1, "it is still held");
        asking.join().unwrap();
    });
}
