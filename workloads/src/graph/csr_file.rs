//! `.gcsr` files: compressed sparse rows as they lie in memory, to be mapped and not read. `docs/GRAPHS.md` has the layout.

use std::io::{self, Write};

use bytemuck::{Pod, Zeroable};
use rayon::prelude::*;

use super::array::{self, Array, Map};
use super::csr::Csr;
use super::error::GraphError;
use super::ids::VertexIds;
use super::rows;
use super::{Direction, Graph, LoadOptions, MAX_VERTICES, Progress, ProgressFn, Stage, Weights};
use crate::input::{FileError, FileFault, Input, Place};

/// How a file begins. No text does, and a transfer that changes line ends is noticed.
pub(super) const MAGIC: [u8; 8] = *b"\x89gcsr\r\n\x1a";

/// The layout that is written and read.
const VERSION: u32 = 1;

/// Flag: edges are stored in one row only.
const DIRECTED: u32 = 1;
/// Flag: there is a section of weights.
const WEIGHTS: u32 = 2;
/// Flag: there is a section of vertex ids.
const IDS: u32 = 4;

/// The section names, in the order of [`Header::sections`].
const NAMES: [&str; 4] = ["offsets", "neighbours", "weights", "vertex ids"];

/// Where a section of at least that many bytes begins: the largest page of a region, and a huge page of x86-64, so that pages of every
/// size hold one section only.
const LARGE_ALIGNMENT: u64 = 2 << 20;
/// Where a smaller section begins: a page of the system, so that a small graph is a small file.
const ALIGNMENT: u64 = 4 << 10;

/// Bytes that are written or checked at a time.
const CHUNK_BYTES: usize = 1 << 20;

/// The first bytes of a file.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Header {
    magic: [u8; 8],
    version: u32,
    flags: u32,
    vertices: u64,
    /// Stored neighbours.
    edges: u64,
    /// The id of vertex 0 where there is no section of ids.
    first_id: u64,
    sections: [Section; 4],
    reserved: u32,
    /// CRC-32C of the bytes before.
    checksum: u32,
}

/// A section's place. Its length follows from the numbers of vertices and edges.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Section {
    /// Its first byte, from the file's begin; a multiple of 8, and 0 where there is none.
    at: u64,
    checksum: u32,
    reserved: u32,
}

/// All of it is little-endian, as the machine is.
const _: () = assert!(cfg!(target_endian = "little"));

const HEADER_BYTES: usize = size_of::<Header>();

impl Header {
    fn own_checksum(&self) -> u32 {
        crc32c::crc32c(&bytemuck::bytes_of(self)[..HEADER_BYTES - 4])
    }

    fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    /// The length of each section in bytes, `None` for one that is not there. No sum of them overflows 128 bits.
    fn lengths(&self) -> [Option<u128>; 4] {
        let (vertices, edges) = (u128::from(self.vertices), u128::from(self.edges));
        [
            Some((vertices + 1) * 8),
            Some(edges * 4),
            self.has(WEIGHTS).then_some(edges * 4),
            self.has(IDS).then_some(vertices * 8),
        ]
    }
}

impl Graph {
    /// Writes the graph as a `.gcsr` file, from the begin of `out` on: rows, weights where it has some, ids, and checksums of all.
    /// `docs/GRAPHS.md` has the layout.
    ///
    /// # Errors
    /// Those of `out`; a part of the file may be written then.
    pub fn write(&self, out: &mut dyn Write, progress: &mut ProgressFn<'_>) -> io::Result<()> {
        write(self, out, progress)
    }
}

/// Writes a graph, from the file's begin on.
fn write(graph: &Graph, out: &mut dyn Write, progress: &mut ProgressFn<'_>) -> io::Result<()> {
    let directed = match graph.direction {
        Direction::Directed => DIRECTED,
        Direction::Undirected => 0,
    };
    let (first_id, ids) = match &graph.ids {
        VertexIds::Counted { first } => (*first, None),
        VertexIds::Listed(ids) => (0, Some(&**ids)),
    };
    let contents: [Option<&[u8]>; 4] = [
        Some(bytemuck::cast_slice(graph.csr.offsets())),
        Some(bytemuck::cast_slice(graph.csr.neighbours())),
        graph.weights().map(bytemuck::cast_slice),
        ids.map(bytemuck::cast_slice),
    ];
    let flag = |there, flag| if there { flag } else { 0 };
    let mut header = Header {
        magic: MAGIC,
        version: VERSION,
        flags: directed | flag(contents[2].is_some(), WEIGHTS) | flag(ids.is_some(), IDS),
        vertices: graph.csr.vertices().into(),
        edges: graph.csr.edges(),
        first_id,
        ..Header::zeroed()
    };
    let mut end = HEADER_BYTES as u64;
    for (section, bytes) in header.sections.iter_mut().zip(&contents) {
        let Some(bytes) = bytes else { continue };
        let length = bytes.len() as u64;
        let alignment = if length < LARGE_ALIGNMENT {
            ALIGNMENT
        } else {
            LARGE_ALIGNMENT
        };
        section.at = end.next_multiple_of(alignment);
        section.checksum = checksum(bytes);
        end = section.at + length;
    }
    header.checksum = header.own_checksum();
    let mut done = 0;
    let mut put = |bytes: &[u8]| {
        for chunk in bytes.chunks(CHUNK_BYTES) {
            out.write_all(chunk)?;
            done += chunk.len() as u64;
            progress(Progress {
                stage: Stage::Write,
                done,
                total: end,
            });
        }
        Ok::<u64, io::Error>(done)
    };
    let mut written = put(bytemuck::bytes_of(&header))?;
    for (section, bytes) in header.sections.iter().zip(contents) {
        let Some(bytes) = bytes else { continue };
        put(&vec![0; (section.at - written) as usize])?;
        written = put(bytes)?;
    }
    Ok(())
}

/// CRC-32C, on all cores.
fn checksum(bytes: &[u8]) -> u32 {
    let chunks = bytes.par_chunks(CHUNK_BYTES);
    let parts = chunks.map(|chunk| (crc32c::crc32c(chunk), chunk.len()));
    let joined = |(one, length): (u32, usize), (other, more): (u32, usize)| {
        (crc32c::crc32c_combine(one, other, more), length + more)
    };
    parts.reduce(|| (0, 0), joined).0
}

/// Maps a file, and checks that everything in it is as the types promise.
pub(super) fn load(
    file: &Input<'_>,
    options: &LoadOptions,
    progress: &mut ProgressFn<'_>,
) -> Result<Graph, GraphError> {
    let mapped = Mapped::new(file)?;
    if options.verify {
        mapped.verify()?;
    }
    let (csr, weights, ids) = mapped.checked(options, progress)?;
    let direction = match mapped.header.has(DIRECTED) {
        false => Direction::Undirected,
        true => Direction::Directed,
    };
    if options.verify && direction == Direction::Undirected && !rows::are_mirrored(&csr, weights.as_deref()) {
        return Err(rows::not_mirrored(file.path));
    }
    let ids = match ids {
        Some(ids) => VertexIds::Listed(ids),
        None => VertexIds::Counted {
            first: mapped.header.first_id,
        },
    };
    Ok(Graph {
        csr,
        weights,
        drawn: false,
        ids,
        direction,
    })
}

/// A mapped file whose header was checked: its sections lie in the file.
struct Mapped<'a> {
    file: &'a Input<'a>,
    map: Map,
    header: Header,
}

/// Rows, weights where they are wanted, and vertex ids.
type Contents = (Csr, Option<Array<u32>>, Option<Array<u64>>);

impl<'a> Mapped<'a> {
    fn new(file: &'a Input<'a>) -> Result<Self, FileError> {
        let wrong = |fault, at: usize, what: &str| file.error(fault, Place::Byte(at as u64), what);
        let malformed = |at, what: &str| wrong(FileFault::Malformed, at, what);
        let unmapped = |source| {
            let what = "cannot map the file into memory";
            file.error(FileFault::Read, Place::File, what).caused_by(source)
        };
        let map = array::map(&file.file, file.path).map_err(unmapped)?;
        let Some(header) = map.get(..HEADER_BYTES) else {
            let what = format!("the file ends within the header of {HEADER_BYTES} bytes; convert the graph again");
            return Err(wrong(FileFault::Truncated, map.len(), &what));
        };
        let header: Header = bytemuck::pod_read_unaligned(header);
        if header.magic != MAGIC {
            return Err(malformed(0, "no .gcsr file begins with these bytes"));
        }
        if header.version != VERSION {
            let what = format!(
                "the file has version {}, and version {VERSION} is read; convert the graph with this gpuvm",
                header.version
            );
            return Err(wrong(FileFault::Unsupported, 8, &what));
        }
        if header.checksum != header.own_checksum() {
            let what = "the checksum of the header does not fit: the file is damaged; convert the graph again";
            return Err(wrong(FileFault::Damaged, HEADER_BYTES - 4, what));
        }
        if let Some((at, what)) = header.fault(map.len() as u64) {
            return Err(malformed(at, &what));
        }
        Ok(Mapped { file, map, header })
    }

    /// The elements of a section, none where it is not there. The header's check found it to be in the file.
    fn section<T: Pod>(&self, index: usize) -> Array<T> {
        let bytes = self.header.lengths()[index].unwrap_or(0) as u64;
        let at = self.header.sections[index].at;
        Array::mapped(&self.map, at, bytes / size_of::<T>() as u64).unwrap_or_else(|| Vec::new().into())
    }

    /// Compares the sections' checksums.
    fn verify(&self) -> Result<(), FileError> {
        for (index, section) in self.header.sections.iter().enumerate() {
            if checksum(&self.section::<u8>(index)) != section.checksum {
                let name = NAMES[index];
                let what =
                    format!("the checksum of the {name} does not fit: the file is damaged; convert the graph again");
                return Err(self.file.error(FileFault::Damaged, Place::Byte(section.at), what));
            }
        }
        Ok(())
    }

    /// The sections as arrays, when all elements are what they have to be.
    fn checked(&self, options: &LoadOptions, progress: &mut ProgressFn<'_>) -> Result<Contents, GraphError> {
        let byte = |section: usize, index: usize, size: u64| self.header.sections[section].at + index as u64 * size;
        let path = self.file.path;
        let (offsets, neighbours) = (self.section::<u64>(0), self.section::<u32>(1));
        if let Some(fault) = rows::offsets_fault(&offsets, self.header.edges) {
            return Err(fault.in_file(path, byte(0, fault.index, 8)));
        }
        let csr = Csr::of_parts(offsets, neighbours);
        if let Some(fault) = rows::rows_fault(&csr, progress) {
            return Err(fault.in_file(path, byte(1, fault.index, 4)));
        }
        let wants = options.weights == Weights::FromFileOrDrawn;
        let weights = (wants && self.header.has(WEIGHTS)).then(|| self.section::<u32>(2));
        if let Some(weights) = &weights
            && let Some(index) = rows::first(weights, |weight| *weight == 0)
        {
            let row = rows::row_of(csr.offsets(), index);
            let what = "has the weight 0; weights are positive";
            return Err(rows::of_row(path, byte(2, index, 4), row, &what));
        }
        let ids = self.header.has(IDS).then(|| self.section::<u64>(3));
        if let Some(ids) = &ids
            && let Some(index) = rows::first_pair(ids, |before, id| before >= id)
        {
            let what = format!(
                "has the id {} after {}; they have to ascend",
                ids[index],
                ids[index - 1]
            );
            return Err(rows::of_row(path, byte(3, index, 8), index as u32, &what));
        }
        Ok((csr, weights, ids))
    }
}

impl Header {
    /// Where the header is wrong for a file of that many bytes, and what it says there.
    fn fault(&self, file_bytes: u64) -> Option<(usize, String)> {
        use std::mem::offset_of;
        if self.flags & !(DIRECTED | WEIGHTS | IDS) != 0 {
            return Some((offset_of!(Header, flags), format!("unknown flags {:#x}", self.flags)));
        }
        if self.vertices > u64::from(MAX_VERTICES) {
            let what = format!("{} vertices, at most {MAX_VERTICES} are supported", self.vertices);
            return Some((offset_of!(Header, vertices), what));
        }
        if self.first_id.checked_add(self.vertices).is_none() {
            let what = format!("vertex ids from {} on do not fit into 64 bits", self.first_id);
            return Some((offset_of!(Header, first_id), what));
        }
        let sections = self.sections.iter().zip(self.lengths()).zip(NAMES).enumerate();
        for (index, ((section, length), name)) in sections {
            let byte = offset_of!(Header, sections) + index * size_of::<Section>();
            let Some(length) = length else { continue };
            if section.at < HEADER_BYTES as u64 || !section.at.is_multiple_of(8) {
                let what = format!("the {name} cannot begin at byte {}", section.at);
                return Some((byte, what));
            }
            let end = u128::from(section.at) + length;
            if end > u128::from(file_bytes) {
                let what = format!(
                    "the {name} end at byte {end}, and the file at byte {file_bytes}: it is truncated; convert the graph again"
                );
                return Some((byte, what));
            }
        }
        None
    }
}
