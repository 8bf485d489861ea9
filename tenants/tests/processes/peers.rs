//! Peers and clients that are broken, slow, or belong to somebody else.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use gpuvm_tenants::{DriverView, PeerError, Tenant, tenants};
use rustix::process::{Uid, geteuid};

use crate::child::Process;
use crate::pool::Pool;
use crate::{HANG, MIB, Registry, Stranger, ends, eventually, terms};

fn joined(registry: &Registry, frames: u64, priority: i8) -> Tenant {
    let pool = Arc::new(Pool::new(frames, 0));
    Tenant::join(&registry.folder, &registry.gpu, terms(0, None, priority), pool).unwrap()
}

/// The socket of the only tenant.
fn socket(registry: &Registry) -> PathBuf {
    let files = registry.files();
    let name = files.iter().find(|name| name.ends_with(".sock")).unwrap();
    registry.folder.path().join(registry.gpu.key.to_string()).join(name)
}

fn framed(text: &str) -> Vec<u8> {
    [&(text.len() as u32).to_le_bytes(), text.as_bytes()].concat()
}

/// Requests and answers that no tenant sends.
fn garbage() -> Vec<Vec<u8>> {
    vec![
        vec![],
        vec![0; 4],
        vec![0xff; 4096],
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        framed(r#"{"version":1,"body":"#),
        framed(r#"{"version":1,"body":{"give":{"bytes":-1}}}"#),
        framed(r#"{"version":2,"body":"describe"}"#),
        framed(r#"{"version":1,"body":{"gave":{"bytes":1}}}"#),
        framed(r#"{"version":1,"body":{"description":{"program":"x","terms":{"minimum":2,"limit":1,"priority":0}}}}"#),
        framed(&"[".repeat(10_000)),
    ]
}

#[test]
fn garbage_from_clients_changes_nothing() {
    let registry = Registry::new();
    let tenant = joined(&registry, MIB, 0);
    for bytes in garbage() {
        let mut stream = UnixStream::connect(socket(&registry)).unwrap();
        stream.set_read_timeout(Some(HANG)).unwrap();
        // It may have been cut off already.
        let _ = stream.write_all(&bytes).and_then(|()| stream.shutdown(Shutdown::Write));
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert_eq!(answer, [0; 0], "an answer to {bytes:?}");
        assert_eq!(registry.pids(), [std::process::id()]);
    }
    let give = |asker: &str| {
        let mut stream = UnixStream::connect(socket(&registry)).unwrap();
        let most = u64::MAX;
        let request =
            format!(r#"{{"version":1,"body":{{"give":{{"bytes":{most},"within_ms":{most},"asker":{asker}}}}}}}"#);
        stream.write_all(&framed(&request)).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    // Whatever an asker wants, a tenant gives by the rule. One with a lower priority gets nothing.
    let answer = give(r#"{"holding":0,"minimum":18446744073709551615,"limit":null,"priority":-1}"#);
    assert!(answer.ends_with(r#""body":{"gave":{"bytes":0}}}"#), "{answer}");
    // A request with the largest numbers is a request.
    let answer = give(r#"{"holding":0,"minimum":18446744073709551615,"limit":null,"priority":127}"#);
    assert!(
        answer.ends_with(&format!(r#""body":{{"gave":{{"bytes":{MIB}}}}}}}"#)),
        "{answer}"
    );
    drop(tenant);
}

#[test]
fn many_silent_clients_do_not_keep_a_tenant_from_the_others() {
    let registry = Registry::new();
    let tenant = joined(&registry, MIB, 0);
    let silent: Vec<UnixStream> = (0..60)
        .map(|_| UnixStream::connect(socket(&registry)).unwrap())
        .collect();
    // One byte a second is as good as nothing.
    for mut stream in &silent {
        let _ = stream.write_all(&[1]);
    }
    eventually("it answers in spite of them", || {
        registry.pids() == [std::process::id()]
    });
    for mut stream in &silent {
        stream.set_read_timeout(Some(HANG)).unwrap();
        // Cut off, each of them, without a word.
        let ended = stream.read(&mut [0; 8]).map_err(|error| error.kind());
        assert!(
            matches!(ended, Ok(0) | Err(std::io::ErrorKind::ConnectionReset)),
            "{ended:?}"
        );
    }
    ends("leaving", move || drop(tenant));
}

#[test]
fn a_tenant_leaves_although_clients_say_nothing() {
    let registry = Registry::new();
    let tenant = joined(&registry, MIB, 0);
    let path = socket(&registry);
    let _silent: Vec<UnixStream> = (0..60).map(|_| UnixStream::connect(&path).unwrap()).collect();
    ends("leaving", move || drop(tenant));
    assert_eq!(registry.files(), [""; 0]);
}

#[test]
fn peers_that_answer_garbage_are_told_from_tenants() {
    let registry = Registry::new();
    let tenant = joined(&registry, 0, 0);
    let low = Process::start(&registry, 8 * MIB, terms(0, None, -1));
    let stranger = Stranger::enter(&registry, 1);
    let listener = stranger.listener.try_clone().unwrap();
    std::thread::spawn(move || {
        let answers = garbage();
        // Each answer for one look, again and again.
        for (number, stream) in listener.incoming().enumerate() {
            let Ok(mut stream) = stream else { break };
            let _ = stream.write_all(&answers[1 + number % (answers.len() - 1)]);
        }
    });
    for _ in 0..garbage().len() {
        let peers = tenants(&registry.folder, &registry.gpu.key).unwrap();
        assert_eq!(peers.len(), 3);
        let answer = &peers.iter().find(|peer| peer.pid() == stranger.pid).unwrap().answer;
        let named = matches!(
            answer,
            Err(PeerError::Garbage { .. } | PeerError::Version { .. } | PeerError::Io(_) | PeerError::Timeout)
        );
        assert!(named, "{answer:?}");
    }
    let granted = tenant.ask(MIB, HANG, DriverView::default).unwrap();
    assert_eq!(granted.given, [(low.pid(), MIB)]);
}

#[test]
fn a_peer_whose_queue_is_full_costs_a_bounded_time() {
    let registry = Registry::new();
    let tenant = joined(&registry, 0, 0);
    let low = Process::start(&registry, 8 * MIB, terms(0, None, -1));
    let stranger = Stranger::enter(&registry, 1);
    rustix::net::listen(&stranger.listener, 0).unwrap();
    // It accepts none of them: from here on `connect` waits.
    let path = registry.folder.path().join("sim/1-00000000000000aa.sock");
    let waiting = UnixStream::connect(path).unwrap();
    let granted = ends("asking beside a full queue", move || {
        tenant.ask(MIB, HANG, DriverView::default)
    });
    assert_eq!(granted.unwrap().given, [(low.pid(), MIB)]);
    let peers = tenants(&registry.folder, &registry.gpu.key).unwrap();
    let answer = &peers.iter().find(|peer| peer.pid() == 1).unwrap().answer;
    assert!(matches!(answer, Err(PeerError::Timeout)), "{answer:?}");
    drop((waiting, stranger));
    assert_eq!(registry.pids(), [low.pid()]);
}

#[test]
fn a_peer_that_claims_to_hold_everything_only_fools_itself() {
    let registry = Registry::new();
    let tenant = joined(&registry, 0, 0);
    let low = Process::start(&registry, 8 * MIB, terms(0, None, -1));
    let stranger = Stranger::enter(&registry, 1);
    let listener = stranger.listener.try_clone().unwrap();
    let most = u64::MAX;
    let says = format!(
        r#"{{"version":1,"body":{{"description":{{"program":"\u001b[2Jx","terms":{{"minimum":0,"limit":null,"priority":-100}},"holding":{{"frames":{most},"buffers":{most},"other":0}},"total_bytes":{most},"since":{most}}}}}}}"#
    );
    std::thread::spawn(move || {
        // To whatever is asked it says the same.
        for mut stream in listener.incoming().map_while(Result::ok) {
            let _ = stream.write_all(&framed(&says));
        }
    });
    let peers = tenants(&registry.folder, &registry.gpu.key).unwrap();
    let found = peers.iter().find(|peer| peer.pid() == 1).unwrap();
    let description = found.answer.as_ref().unwrap();
    assert_eq!(description.holding.total(), u64::MAX);
    assert_eq!(description.program, "[2Jx");
    // It is asked first, gives nothing, and is passed over.
    let granted = tenant.ask(MIB, HANG, DriverView::default).unwrap();
    assert_eq!(granted.given, [(low.pid(), MIB)]);
}

/// Runs it on a thread with another user's rights, where this process may do that.
fn as_another_user<T: Send>(work: impl FnOnce() -> T + Send) -> Option<T> {
    if !geteuid().is_root() {
        eprintln!("skipped: only root can take another user's part");
        return None;
    }
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            // Of this thread alone.
            if let Err(error) = rustix::thread::set_thread_uid(Uid::from_raw(12345)) {
                eprintln!("skipped: this process may not take another user's part ({error})");
                return None;
            }
            Some(work())
        });
        other.join().unwrap()
    })
}

fn open_to_all(path: &std::path::Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn another_user_is_not_served_even_where_files_are_open_to_all() {
    let registry = Registry::new();
    let _tenant = joined(&registry, MIB, 0);
    let path = socket(&registry);
    let refused = as_another_user(|| UnixStream::connect(&path).map(drop).map_err(|error| error.kind()));
    let Some(refused) = refused else { return };
    assert_eq!(refused, Err(std::io::ErrorKind::PermissionDenied));
    for folder in [registry.above.path(), registry.folder.path(), path.parent().unwrap()] {
        open_to_all(folder, 0o711);
    }
    open_to_all(&path, 0o666);
    let answer = as_another_user(|| {
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.set_read_timeout(Some(HANG)).unwrap();
        let _ = stream.write_all(&framed(r#"{"version":1,"body":"describe"}"#));
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        answer
    });
    assert_eq!(answer.unwrap(), [0; 0]);
    // The same words from this user are answered.
    let mut stream = UnixStream::connect(&path).unwrap();
    stream.write_all(&framed(r#"{"version":1,"body":"describe"}"#)).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    assert!(answer.len() > 50);
}

#[test]
fn another_users_socket_is_told_nothing() {
    let registry = Registry::new();
    let _tenant = joined(&registry, MIB, 0);
    let stranger = Stranger::enter(&registry, 1);
    // Who listens is who the kernel says is at the other end.
    let listening = as_another_user(|| rustix::net::listen(&stranger.listener, 8).unwrap());
    if listening.is_none() {
        return;
    }
    let listener = stranger.listener.try_clone().unwrap();
    let heard = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut heard = Vec::new();
        let _ = stream.read_to_end(&mut heard);
        heard
    });
    let peers = tenants(&registry.folder, &registry.gpu.key).unwrap();
    let answer = &peers.iter().find(|peer| peer.pid() == 1).unwrap().answer;
    assert!(matches!(answer, Err(PeerError::OtherUser { uid: 12345 })), "{answer:?}");
    assert_eq!(heard.join().unwrap(), [0; 0]);
}
