//! `verbs-client DEVICE COUNT` connects a queue pair of an RDMA device to itself, sends this many messages one after the
//! other, and compares what is received. It uses the ibverbs crate, so that it has nothing in common with gpuvm.

use std::error::Error;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use ibverbs::{ibv_gid_type, ibv_qp_type, ibv_wc};

/// `IBV_GID_TYPE_ROCE_V2`, a name that the crate does not export.
const ROCE_V2: ibv_gid_type = 2;

/// Words of one message: 4 KiB.
const WORDS: usize = 512;
/// Longest time for one message.
const SOON: Duration = Duration::from_secs(20);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [device, count] = &arguments[..] else {
        eprintln!("usage: verbs-client DEVICE COUNT");
        return ExitCode::from(2);
    };
    match count
        .parse()
        .map_err(Into::into)
        .and_then(|count| exchange(device, count))
    {
        Ok(()) => {
            println!("{count} messages were received as they were sent");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("verbs-client: {error}");
            ExitCode::FAILURE
        }
    }
}

fn exchange(name: &str, count: u64) -> Result<(), Box<dyn Error>> {
    let devices = ibverbs::devices()?;
    let device = devices
        .iter()
        .find(|device| device.name().is_some_and(|found| found.to_bytes() == name.as_bytes()))
        .ok_or_else(|| format!("there is no RDMA device {name}"))?;
    let context = device.open()?;
    let gid = context
        .gid_table()
        .iter()
        .find(|entry| entry.gid_type == ROCE_V2)
        .ok_or("the device has no address for RoCE version 2")?;
    let completions = context.create_cq(16, 0)?;
    let domain = context.alloc_pd()?;
    let prepared = domain
        .create_qp(&completions, &completions, ibv_qp_type::IBV_QPT_RC)
        .set_gid_index(gid.gid_index)
        .build()?;
    let itself = prepared.endpoint();
    let mut queue = prepared.handshake(itself)?;
    // The first half is received into, the second is sent.
    let mut memory = domain.allocate::<u64>(2 * WORDS)?;
    for message in 0..count {
        for (at, word) in memory[WORDS..].iter_mut().enumerate() {
            *word = message * 0x9e37_79b9 + at as u64;
        }
        // SAFETY: the memory outlives the requests, which are waited for before it is touched or freed.
        unsafe {
            queue.post_receive(&mut memory, ..WORDS, 2)?;
            queue.post_send(&mut memory, WORDS.., 1)?;
        }
        let (ends, mut done) = (Instant::now() + SOON, 0);
        while done < 2 {
            let mut found = [ibv_wc::default(); 4];
            for completion in completions.poll(&mut found)? {
                if let Some((status, vendor)) = completion.error() {
                    return Err(format!("message {message} failed: {status:?}, {vendor}").into());
                }
                done += 1;
            }
            if Instant::now() > ends {
                return Err(format!("message {message} did not arrive within {SOON:?}").into());
            }
            std::thread::yield_now();
        }
        if memory[..WORDS] != memory[WORDS..] {
            return Err(format!("message {message} is not what was sent").into());
        }
    }
    Ok(())
}
