//! The settings of a virtual memory by name, for faces in other languages, files and command lines: one table.

use std::{collections::BTreeMap, fmt::Display, ops::RangeInclusive, str::FromStr, time::Duration};

use gpuvm_nic::NicLimits;
use gpuvm_tenants::{Terms, parse_bytes};

use crate::{
    error::{Error, Result},
    plan::{FileCache, Loan, Precompiled, refuse},
    settings::{
        Gpu, MemoryNodes, Mlx5, NicEngine, Queues, Rdma, Retransmission, SimulatedGpu, Soft, Transport, VmBuilder,
    },
    tenancy::Tenancy,
    timeline::Timeline,
};

/// What a value is, and what it does.
enum Set {
    /// Bytes, or a size such as `2GiB`, above 0.
    Bytes(fn(&mut VmBuilder, u64)),
    /// A whole number above 0.
    Count(fn(&mut VmBuilder, u32)),
    /// A whole number.
    Wide(fn(&mut VmBuilder, u64)),
    /// A whole number up to 255.
    Small(fn(&mut VmBuilder, u8)),
    /// A whole number with a sign.
    Priority(fn(&mut VmBuilder, i32)),
    /// Seconds, or a time such as `250ms`.
    Time(fn(&mut VmBuilder, Duration)),
    /// `true` or `1`, `false` or `0`.
    Flag(fn(&mut VmBuilder, bool)),
    /// As it stands.
    Text(fn(&mut VmBuilder, &str)),
    /// What a function reads.
    Read(fn(&mut VmBuilder, &str) -> Result<()>),
}

/// Whose a setting is.
enum Of {
    All,
    /// Simulated GPUs.
    Simulated,
    /// These transports, by their names.
    Transports(&'static [&'static str]),
    /// Those with this setting.
    Beside(&'static str),
}

struct Setting {
    name: &'static str,
    /// For people.
    what: &'static str,
    of: Of,
    set: Set,
}

macro_rules! table {
    ($($(#[doc = $what:literal])+ $name:ident, $of:expr, $set:ident => $act:expr;)*) => {
        /// In the order in which they are set: those that others go with come first.
        const TABLE: &[Setting] = &[$(Setting {
            name: stringify!($name),
            what: concat!($($what),+),
            of: $of,
            set: Set::$set($act),
        }),*];
    };
}

use Of::{All, Beside, Simulated, Transports};
const NODES: &str = "memory nodes";
/// What no message has in it.
const SECRET: &str = "memory_node_secret";

table! {
    /// `auto`, `sim`, `cuda:N` or `cuda:GPU-UUID`; several with commas. Default: `auto`, the first NVIDIA GPU, else the simulated one.
    gpu, All, Read => gpus;
    /// Worker threads. Default: one a core.
    sim_workers, Simulated, Count => |vm, count| simulated(vm, |gpu| gpu.workers(count));
    /// Threads of a worker. Default: 256.
    sim_lanes_per_worker, Simulated, Count => |vm, lanes| simulated(vm, |gpu| gpu.lanes_per_worker(lanes));
    /// Its memory. Default: frames and bookkeeping plus 1 GiB.
    sim_memory, Simulated, Bytes => |vm, bytes| simulated(vm, |gpu| gpu.memory(bytes));
    /// Number of neighbour GPUs, with ordinals from 1 on. Default: as many as lend memory.
    sim_neighbours, Simulated, Count => |vm, count| simulated(vm, |gpu| gpu.neighbours(count));
    /// Whether a launch always has a block on each worker; else it waits for free workers, as on hardware. Default: true.
    sim_room_for_all, Simulated, Flag => |vm, always| simulated(vm, |gpu| gpu.room_for_all(always));
    /// The name under which other processes share it. Default: it is not shared.
    sim_shared_as, Simulated, Text => |vm, name| simulated(vm, |gpu| gpu.shared_as(name));
    /// The seed that decides the one interleaving in which it runs. Default: threads run as the system lets them.
    sim_seed, Simulated, Wide => |vm, seed| simulated(vm, |gpu| gpu.seed(seed));
    /// `auto`, `direct`, `soft`, `rxe` or `mlx5`. Default: `auto`, which is `direct` on an NVIDIA GPU and `soft` on the simulated one; with
    /// memory nodes the transport whose device reaches them.
    transport, All, Read => |vm, name| name.parse().map(|transport| vm.transport = transport);
    /// Memory nodes where the pages live, `host:port` each, with commas. Default: this host's memory.
    memory_nodes, Transports(&["auto", "rxe", "mlx5"]), Text => |vm, addresses| {
        let nodes = MemoryNodes::at(names(addresses));
        match &mut vm.transport {
            Transport::Rxe(rxe) => rxe.nodes = Some(nodes),
            Transport::Mlx5(mlx5) => mlx5.nodes = Some(nodes),
            other => *other = Rdma::to(nodes).queues(other.queues().unwrap_or_default()).into(),
        }
    };
    /// The secret that they ask for.
    memory_node_secret, Beside("memory_nodes"), Text => |vm, secret| nodes(vm, |nodes| nodes.secret(secret));
    /// Longest step with a memory node. Default: 10 s.
    memory_node_timeout, Beside("memory_nodes"), Time => |vm, limit| nodes(vm, |nodes| nodes.timeout(limit));
    /// Devices: one of `rxe`, or several of `mlx5` with commas. Default: those that lead to the memory nodes, or the first, or the nearest.
    nics, Transports(&["rxe", "mlx5"]), Read => nics;
    /// Queue pairs of each home and NIC. Default: as many as the transport takes.
    queue_pairs, Transports(QUEUED), Count => |vm, count| queues(vm, |queues| queues.pairs(count));
    /// Requests of a queue pair, a power of two up to 32768. Default: 256.
    queue_depth, Transports(QUEUED), Count => |vm, requests| queues(vm, |queues| queues.depth(requests));
    /// Homes in this host's memory, 1 or 2. Default: 1.
    host_homes, Transports(QUEUED), Count => |vm, count| queues(vm, |queues| queues.host_homes(count));
    /// Engine threads of the software NIC. Default: 1.
    soft_engines, Transports(&["soft"]), Count => |vm, count| soft(vm, |soft| soft.engines(count as usize));
    /// What executes the software NIC's requests: `cpu`, or `gpu:N`, a kernel on N multiprocessors, 1 to 4. Default: `cpu`.
    nic_engine, Transports(&["auto", "soft"]), Read => |vm, text| {
        let engine = text.parse()?;
        if let NicEngine::Gpu(_) = engine {
            take_soft(vm);
        }
        soft(vm, |soft| soft.engine(engine));
        Ok(())
    };
    /// Limits that the software NIC keeps to: `connectx-7`, or `none`. Default: `none`.
    nic_limits, Transports(&["auto", "soft"]), Read => nic_limits;
    /// Whether all completions of a queue pair are written to one entry. Default: false.
    collapsed_completions, Transports(&["soft"]), Flag => |vm, collapsed| soft(vm, |soft| soft.collapsed_completions(collapsed));
    /// Whether each READ is followed by a flush, a read of its frame, also where it is not needed. Default: false.
    flush_reads, Transports(&["soft", "mlx5"]), Flag => |vm, always| match &mut vm.transport {
        Transport::Soft(soft) => soft.flush_reads = always,
        Transport::Mlx5(mlx5) => mlx5.flush_reads = always,
        _ => {}
    };
    /// Retries of a request without an answer, 0 to 6; 7 is without limit. Default: 6.
    rdma_retries, Transports(&["rxe", "mlx5", NODES]), Small => |vm, count| again(vm, |again| again.retries(count));
    /// Timeout of an acknowledgement: 4.096 us times 2 to this power, 1 to 31. Default: 14.
    rdma_ack_timeout, Transports(&["rxe", "mlx5", NODES]), Small => |vm, code| again(vm, |again| again.ack_timeout(code));
    /// The port, from 1 on. Default: 1.
    mlx5_port, Transports(&["mlx5"]), Small => |vm, port| mlx5(vm, |mlx5| mlx5.path.port = port);
    /// Which of the port's GIDs. Default: a RoCE v2 one.
    mlx5_gid_index, Transports(&["mlx5"]), Small => |vm, index| mlx5(vm, |mlx5| mlx5.path.gid_index = Some(index));
    /// Most bytes of a packet's data. Default: what the port has.
    mlx5_mtu, Transports(&["mlx5"]), Count => |vm, bytes| mlx5(vm, |mlx5| mlx5.path.mtu = Some(bytes));
    /// Service level, 0 to 15. Default: 0.
    mlx5_service_level, Transports(&["mlx5"]), Small => |vm, level| mlx5(vm, |mlx5| mlx5.path.service_level = level);
    /// Traffic class. Default: 0.
    mlx5_traffic_class, Transports(&["mlx5"]), Small => |vm, class| mlx5(vm, |mlx5| mlx5.path.traffic_class = class);
    /// How queues are made: `verbs` or `devx`. Default: `verbs`.
    mlx5_queues, Transports(&["mlx5"]), Read => |vm, how| {
        let making = how.parse().or_else(|_| refuse("mlx5_queues", quoted(how), "expected verbs or devx"))?;
        mlx5(vm, |mlx5| mlx5.making = making);
        Ok(())
    };
    /// GPU memory for page frames. Default: 64 MiB.
    frame_memory, All, Bytes => |vm, bytes| vm.settings.frame_memory = bytes;
    /// Largest size of a resizable frame pool. Default: the frame pool is not resizable.
    frame_capacity, All, Bytes => |vm, bytes| vm.settings.frame_capacity = Some(bytes);
    /// With `frame_capacity`: bytes of frames that buffers may not take when GPU memory is short. Default: an eighth of `frame_memory`.
    frame_minimum, All, Bytes => |vm, bytes| vm.settings.frame_minimum = Some(bytes);
    /// With `frame_capacity`: when GPU memory is short, frames and elastic buffers of low priority shrink first. Default: 0.
    frame_priority, All, Priority => |vm, priority| vm.settings.frame_priority = priority;
    /// With `frame_capacity`: bytes of the GPU's memory to keep free: where fewer are free, the frame pool returns memory to the driver,
    /// down to `frame_minimum`; where more are free and pages are evicted, the pool grows. Default: the pool does not follow free memory.
    frames_leave_free, All, Bytes => |vm, bytes| vm.settings.frames_leave_free = Some(bytes);
    /// Bytes of a page, a power of two from 4 KiB to 2 MiB. Default: 4 KiB.
    page_size, All, Bytes => |vm, bytes| vm.settings.page_size = bytes;
    /// Memory that neighbour GPUs lend, `GPU:SIZE` or `GPU:auto` each, with commas. Default: nothing is borrowed.
    borrow_from, All, Read => loans;
    /// Bytes of the page cache for files, in host memory: files are read and written through it as kernels need them. Default: files are mapped.
    file_cache, All, Bytes => |vm, bytes| vm.settings.file_cache = Some(FileCache { bytes, on_gpu: false });
    /// Whether the file cache is in GPU memory, which files reach by GPUDirect Storage. Default: false.
    file_cache_on_gpu, Beside("file_cache"), Flag => |vm, on_gpu| {
        vm.settings.file_cache = vm.settings.file_cache.map(|memory| FileCache { on_gpu, ..memory });
    };
    /// Default placement of regions, which decides what an access to a page without a frame does: `look-up`, `fetch`, `auto`, `in-place` or `while-free`.
    /// Default: `look-up` where GPU threads reach the region's home by loads, `fetch` elsewhere.
    placement, All, Read => |vm, text| {
        let placement = text.parse().or_else(|reason: String| refuse("placement", quoted(text), reason))?;
        vm.settings.placement = Some(placement);
        Ok(())
    };
    /// Whether pages of arrays that a launch looks up and only reads come to free frames while it runs. Default: on NVIDIA GPUs.
    bring_beside, All, Flag => |vm, bring| vm.settings.bring_beside = Some(bring);
    /// Timeout of a waiting GPU thread. Default: 10 s.
    wait_limit, All, Time => |vm, limit| vm.settings.wait_limit = limit;
    /// Timeout of a launch. Default: 10 minutes.
    launch_deadline, All, Time => |vm, limit| vm.settings.launch_deadline = limit;
    /// Largest number of regions at a time, 1 to 65536. Default: 65536.
    regions_max, All, Count => |vm, count| vm.settings.regions_max = count;
    /// Whether regions may have replicas and checksums. Default: false.
    reliable_regions, All, Flag => |vm, reliable| vm.settings.reliable = reliable;
    /// A folder of modules that were compiled before by the same version, which need no compiler. Default: none.
    precompiled, All, Text => |vm, folder| vm.settings.precompiled = Some(Precompiled::In(folder.into()));
    /// Where a simulated GPU runs the kernels: a folder that gets each module which is compiled, for `precompiled`. Default: none.
    precompile_into, All, Read => precompile_into;
    /// How the process shares a GPU's memory with others: `environment`, as `GPUVM_MEMORY_LIMIT`, `GPUVM_MEMORY_MIN` and `GPUVM_PRIORITY` say
    /// and the three settings here in their place; or `none`, which does not share. Default: `environment`.
    tenancy, All, Read => tenancy;
    /// Bytes that it holds at most. Default, where one of the three is set: no limit.
    tenancy_limit, All, Read => |vm, text| terms(vm, "tenancy_limit", text, |old, bytes| Terms::new(old.minimum(), Some(bytes), old.priority()));
    /// Bytes that it always keeps. Default, where one of the three is set: 0.
    tenancy_minimum, All, Read => |vm, text| terms(vm, "tenancy_minimum", text, |old, bytes| Terms::new(bytes, old.limit(), old.priority()));
    /// From -100 to 100: processes of low priority give up memory first. Default, where one of the three is set: 0.
    tenancy_priority, All, Read => tenancy_priority;
    /// The folder of the registry. Default: the user's.
    tenancy_folder, All, Text => |vm, folder| vm.settings.tenancy = vm.settings.tenancy.clone().folder(folder);
    /// The file of a timeline, which Perfetto opens; `%p` in it becomes the number of the process. Default: that of `GPUVM_TRACE`, if it is set.
    timeline, All, Text => |vm, file| vm.settings.timeline = Some(Timeline::to(file));
    /// Most bytes of the file. Default: 256 MiB.
    timeline_file_bytes, Beside("timeline"), Bytes => |vm, bytes| timeline(vm, |timeline| timeline.file_bytes(bytes));
    /// Events that the ring in GPU memory holds until the host has read them. Default: 65,536.
    timeline_ring_events, Beside("timeline"), Wide => |vm, events| timeline(vm, |timeline| timeline.ring_events(events));
    /// Sampling: one in this many faults, evictions and so on is recorded. Default: 64.
    timeline_one_in, Beside("timeline"), Count => |vm, events| timeline(vm, |timeline| timeline.one_in(events));
}

/// The transports that have queues, by their names.
const QUEUED: &[&str] = &["auto", "soft", "rxe", "mlx5"];

/// Other names, which are as good: those of the command's options.
const OTHERS: [(&str, &str); 13] = [
    ("memory", "frame_memory"),
    ("gpus", "gpu"),
    ("workers", "sim_workers"),
    ("seed", "sim_seed"),
    ("gpu_memory", "sim_memory"),
    ("borrow", "borrow_from"),
    ("memory_node", "memory_nodes"),
    ("rdma_device", "nics"),
    ("rdma_port", "mlx5_port"),
    ("gid_index", "mlx5_gid_index"),
    ("rdma_mtu", "mlx5_mtu"),
    ("service_level", "mlx5_service_level"),
    ("traffic_class", "mlx5_traffic_class"),
];

/// A setting that [`VmBuilder::named`] takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedSetting {
    /// Its name, and another one if it has that.
    pub names: (&'static str, Option<&'static str>),
    /// What a value is: `text`, `true or false`, `whole number`.
    pub kind: &'static str,
    /// Whose it is, and what it is for.
    pub what: String,
}

impl VmBuilder {
    /// Settings by their names, which are those of C, C++ and Python, in any order: [`named_settings`](Self::named_settings) lists them.
    /// Between the words of a name stands `_` or `-`. Values are written out: sizes `65536` or `64KiB`, times `2` (seconds) or `250ms`, yes
    /// and no `true` and `false`, several names with commas between. A setting of simulated GPUs asks for one where none was named.
    ///
    /// ```
    /// use gpuvm::Vm;
    /// # fn main() -> Result<(), gpuvm::Error> {
    /// let vm = Vm::builder().named([("gpu", "sim"), ("frame_memory", "1MiB"), ("sim-workers", "2")])?.build()?;
    /// let refused = Vm::builder().named([("capacity", 2)]).unwrap_err();
    /// assert_eq!(refused.to_string(), "no setting is named `capacity`: it is `frame_capacity`");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::NoSetting`] for a name that no setting has, [`Error::Setting`] for a value that cannot be, and for a setting that the GPU or the
    /// transport does not have.
    pub fn named<N: AsRef<str>, V: Display>(mut self, settings: impl IntoIterator<Item = (N, V)>) -> Result<Self> {
        let mut given = BTreeMap::new();
        for (name, value) in settings {
            let (row, name) = row(name.as_ref())?;
            if given.insert(row, (name, value.to_string())).is_some() {
                return refuse(name, "set twice".into(), "say it once");
            }
        }
        let has = |name: &str| given.keys().any(|row| TABLE[*row].name == name);
        let simulated = given.keys().any(|row| matches!(TABLE[*row].of, Simulated));
        if simulated && !has("gpu") && matches!(self.gpus[..], [Gpu::Auto]) {
            self.gpus = vec![SimulatedGpu::new().into()];
        }
        for (row, (name, text)) in &given {
            let setting = &TABLE[*row];
            setting.check((name, text), &self, has)?;
            setting.set(name, &mut self, text)?;
        }
        Ok(self)
    }

    /// All settings that [`named`](Self::named) takes.
    pub fn named_settings() -> impl Iterator<Item = NamedSetting> {
        TABLE.iter().map(|setting| {
            let other = OTHERS.iter().find(|(_, name)| *name == setting.name);
            NamedSetting {
                names: (setting.name, other.map(|(other, _)| *other)),
                kind: setting.kind(),
                what: setting.told(),
            }
        })
    }
}

/// The row of a setting, and the name by which it was called.
fn row(given: &str) -> Result<(usize, &'static str)> {
    let name = &*given.replace('-', "_");
    let other = OTHERS.iter().find(|(other, _)| *other == name);
    let of_table = other.map_or(name, |(_, name)| name);
    let found = TABLE.iter().position(|setting| setting.name == of_table);
    let found = found.map(|row| (row, other.map_or(TABLE[row].name, |(other, _)| other)));
    found.ok_or_else(|| {
        let like = |known: &&str| {
            known.starts_with(name) || known.ends_with(name) || name.starts_with(*known) || name.ends_with(*known)
        };
        let names = || TABLE.iter().map(|setting| setting.name);
        let alike: Vec<&str> = names().filter(|known| !name.is_empty() && like(known)).collect();
        let known = match alike.is_empty() {
            false => format!("it is `{}`", alike.join("` or `")),
            true => format!("there are {}", names().collect::<Vec<_>>().join(", ")),
        };
        let name = given.to_owned();
        Error::NoSetting { name, known }
    })
}

impl Setting {
    fn kind(&self) -> &'static str {
        match self.set {
            Set::Bytes(_) => "bytes, or a size such as 2GiB",
            Set::Count(_) | Set::Wide(_) | Set::Small(_) => "whole number",
            Set::Priority(_) => "whole number, also below 0",
            Set::Time(_) => "seconds, or a time such as 250ms",
            Set::Flag(_) => "true or false",
            Set::Text(_) | Set::Read(_) => "text",
        }
    }

    /// Whose it is, and what it is for.
    fn told(&self) -> String {
        let whose = match self.of {
            All => String::new(),
            Simulated => "Simulated GPU: ".into(),
            Transports(names) => format!("Transport {}: ", listed(names, "and")),
            Beside(other) => format!("With `{other}`: "),
        };
        whose + self.what.trim_start()
    }

    /// Whether what has it was asked for.
    fn check(&self, (name, text): (&'static str, &str), vm: &VmBuilder, has: impl Fn(&str) -> bool) -> Result<()> {
        let reason = match self.of {
            Simulated if !vm.gpus.iter().any(|gpu| matches!(gpu, Gpu::Simulated(_))) => {
                "only simulated GPUs have it: leave it out, or use the gpu sim".to_owned()
            }
            Transports(names) => {
                let asked = vm.transport.name();
                if names.contains(&asked) || names.contains(&NODES) && has("memory_nodes") {
                    return Ok(());
                }
                let whose = listed(names, "or");
                format!("transport {asked} has none; leave it out, or use transport {whose}")
            }
            Beside(other) if !has(other) => format!("it requires `{other}`, which is not set"),
            _ => return Ok(()),
        };
        let value = if self.name == SECRET {
            "set".into()
        } else {
            quoted(text)
        };
        refuse(name, value, reason)
    }

    fn set(&self, name: &'static str, vm: &mut VmBuilder, text: &str) -> Result<()> {
        match self.set {
            Set::Bytes(set) => set(vm, bytes(name, text)?),
            Set::Count(set) => set(vm, number(name, text, 1..=u32::MAX)?),
            Set::Wide(set) => set(vm, number(name, text, 0..=u64::MAX)?),
            Set::Small(set) => set(vm, number(name, text, 0..=u8::MAX)?),
            Set::Priority(set) => set(vm, number(name, text, i32::MIN..=i32::MAX)?),
            Set::Time(set) => set(vm, time(name, text)?),
            Set::Flag(set) => match text {
                "true" | "1" => set(vm, true),
                "false" | "0" => set(vm, false),
                _ => return refuse(name, quoted(text), "expected true or false"),
            },
            Set::Text(set) => set(vm, text),
            Set::Read(set) => return set(vm, text),
        }
        Ok(())
    }
}

fn quoted(text: &str) -> String {
    format!("`{text}`")
}

/// `a, b and c`.
fn listed(names: &[&str], and: &str) -> String {
    match names {
        [first @ .., last] if !first.is_empty() => format!("{} {and} {last}", first.join(", ")),
        names => names.concat(),
    }
}

/// Those between the commas.
fn names(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|name| !name.is_empty())
}

fn number<N: FromStr + PartialOrd + Display>(name: &'static str, text: &str, range: RangeInclusive<N>) -> Result<N> {
    let number = text.parse().ok().filter(|number| range.contains(number));
    let reason = || format!("expected a whole number from {} to {}", range.start(), range.end());
    number.map_or_else(|| refuse(name, quoted(text), reason()), Ok)
}

fn bytes(name: &'static str, text: &str) -> Result<u64> {
    match parse_bytes(text) {
        Ok(bytes) if bytes > 0 => Ok(bytes),
        _ => refuse(
            name,
            quoted(text),
            "expected a number of bytes above 0, or a size such as 64MiB or 2GiB",
        ),
    }
}

fn time(name: &'static str, text: &str) -> Result<Duration> {
    let unit = text.trim_end_matches(|c: char| c.is_ascii_alphabetic()).len();
    let scale = match &text[unit..] {
        "" | "s" => Some(1.0),
        "ms" => Some(1e-3),
        "us" => Some(1e-6),
        "ns" => Some(1e-9),
        _ => None,
    };
    let seconds = text[..unit]
        .trim_end()
        .parse::<f64>()
        .ok()
        .zip(scale)
        .map(|(count, scale)| count * scale);
    let time = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    time.map_or_else(
        || {
            refuse(
                name,
                quoted(text),
                "expected seconds, or a time such as 2s, 250ms or 20us",
            )
        },
        Ok,
    )
}

fn gpus(vm: &mut VmBuilder, text: &str) -> Result<()> {
    vm.gpus = text.split(',').map(|name| name.trim().parse()).collect::<Result<_>>()?;
    vm.settings.gpu_count = vm.gpus.len();
    Ok(())
}

fn nics(vm: &mut VmBuilder, text: &str) -> Result<()> {
    let mut devices: Vec<String> = names(text).map(str::to_owned).collect();
    match &mut vm.transport {
        Transport::Rxe(_) if devices.len() > 1 => {
            return refuse("nics", quoted(text), "transport rxe drives one device");
        }
        Transport::Rxe(rxe) => rxe.device = devices.pop(),
        Transport::Mlx5(mlx5) => mlx5.devices = devices,
        _ => {}
    }
    Ok(())
}

fn loans(vm: &mut VmBuilder, text: &str) -> Result<()> {
    for one in names(text) {
        let (gpu, size) = one.split_once(':').unwrap_or((one, ""));
        let loan = match size {
            "auto" => Some(Loan::Auto),
            size => parse_bytes(size).ok().filter(|bytes| *bytes > 0).map(Loan::Bytes),
        };
        let Some((gpu, loan)) = gpu.parse().ok().zip(loan) else {
            return refuse(
                "borrow_from",
                quoted(one),
                "expected GPU:SIZE or GPU:auto, such as 1:8GiB",
            );
        };
        vm.settings.borrowed.push((gpu, loan));
    }
    Ok(())
}

fn precompile_into(vm: &mut VmBuilder, folder: &str) -> Result<()> {
    if vm.settings.precompiled.is_some() {
        let reason = "modules come from `precompiled`, and none is compiled: leave one of the two out";
        return refuse("precompile_into", quoted(folder), reason);
    }
    vm.settings.precompiled = Some(Precompiled::Into(folder.into()));
    Ok(())
}

fn tenancy(vm: &mut VmBuilder, text: &str) -> Result<()> {
    vm.settings.tenancy = match text {
        "environment" => Tenancy::of_environment(),
        "none" => Tenancy::none(),
        _ => return refuse("tenancy", quoted(text), "expected environment or none"),
    };
    Ok(())
}

/// Changes the terms, which are not the environment's any more.
fn change_terms(
    vm: &mut VmBuilder,
    change: impl FnOnce(Terms) -> std::result::Result<Terms, gpuvm_tenants::TermsError>,
) -> Result<()> {
    let old = vm.settings.tenancy.terms_asked().unwrap_or_default();
    let terms = change(old).map_err(|source| Error::Terms { source })?;
    vm.settings.tenancy = vm.settings.tenancy.clone().terms(terms);
    Ok(())
}

fn terms(
    vm: &mut VmBuilder,
    name: &'static str,
    text: &str,
    change: fn(Terms, u64) -> std::result::Result<Terms, gpuvm_tenants::TermsError>,
) -> Result<()> {
    let bytes = bytes(name, text)?;
    change_terms(vm, |old| change(old, bytes))
}

fn tenancy_priority(vm: &mut VmBuilder, text: &str) -> Result<()> {
    let priority = number("tenancy_priority", text, -100..=100)?;
    change_terms(vm, |old| Terms::new(old.minimum(), old.limit(), priority))
}

fn simulated(vm: &mut VmBuilder, change: impl Fn(SimulatedGpu) -> SimulatedGpu) {
    for gpu in &mut vm.gpus {
        if let Gpu::Simulated(simulated) = gpu {
            *simulated = change(std::mem::take(simulated));
        }
    }
}

fn nodes(vm: &mut VmBuilder, change: impl FnOnce(MemoryNodes) -> MemoryNodes) {
    let nodes = match &mut vm.transport {
        Transport::Rdma(rdma) => Some(&mut rdma.nodes),
        Transport::Rxe(rxe) => rxe.nodes.as_mut(),
        Transport::Mlx5(mlx5) => mlx5.nodes.as_mut(),
        _ => None,
    };
    if let Some(nodes) = nodes {
        *nodes = change(nodes.clone());
    }
}

fn queues(vm: &mut VmBuilder, change: impl FnOnce(Queues) -> Queues) {
    if let Some(queues) = vm.transport.queues() {
        vm.transport = std::mem::take(&mut vm.transport).with_queues(change(queues));
    }
}

/// The transport that has what was asked for, where `auto` is to choose.
fn take_soft(vm: &mut VmBuilder) {
    if let Transport::Auto(queues) = &vm.transport {
        vm.transport = Soft::new().queues(*queues).into();
    }
}

fn nic_limits(vm: &mut VmBuilder, text: &str) -> Result<()> {
    if text == "none" {
        return Ok(());
    }
    let Some(limits) = NicLimits::named(text) else {
        let known: Vec<&str> = NicLimits::names().collect();
        return refuse(
            "nic_limits",
            quoted(text),
            format!("expected none or {}", listed(&known, "or")),
        );
    };
    take_soft(vm);
    soft(vm, |soft| soft.limits(limits));
    Ok(())
}

fn soft(vm: &mut VmBuilder, change: impl FnOnce(Soft) -> Soft) {
    if let Transport::Soft(soft) = &mut vm.transport {
        *soft = change(std::mem::take(soft));
    }
}

fn again(vm: &mut VmBuilder, change: impl FnOnce(Retransmission) -> Retransmission) {
    let again = match &mut vm.transport {
        Transport::Rdma(rdma) => &mut rdma.retransmission,
        Transport::Rxe(rxe) => &mut rxe.retransmission,
        Transport::Mlx5(mlx5) => &mut mlx5.retransmission,
        _ => return,
    };
    *again = change(*again);
}

fn mlx5(vm: &mut VmBuilder, change: impl FnOnce(&mut Mlx5)) {
    if let Transport::Mlx5(mlx5) = &mut vm.transport {
        change(mlx5);
    }
}

fn timeline(vm: &mut VmBuilder, change: impl FnOnce(Timeline) -> Timeline) {
    vm.settings.timeline = vm.settings.timeline.take().map(change);
}
