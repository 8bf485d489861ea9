//! The PTX in programs, libraries, objects and fat binaries that nvcc has made.
//!
//! nvcc puts a *fat binary* for each source file into the section `.nv_fatbin`: a header, and behind it entries with the code for one architecture each,
//! as PTX or as machine code, mostly compressed. NVIDIA documents the tools that list them (`cuobjdump`), not the format; these fields were read
//! off the output of nvcc 13.0 with each `--compress-mode`.

use std::io::Read;

/// What a fat binary begins with: its magic number, version 1, and the 16 bytes that this header has.
const MAGIC: [u8; 8] = [0x50, 0xed, 0x55, 0xba, 1, 0, 16, 0];
const HEADER_BYTES: usize = 16;
/// An entry's header has this many bytes at least.
const ENTRY_BYTES: usize = 64;
/// The kind of an entry that is PTX.
const PTX: u16 = 1;
/// What stands behind an entry's kind.
const ENTRY_VERSION: u64 = 0x0101;
const LZ4: u64 = 0x2000;
const ZSTD: u64 = 0x8000;
/// Compiled for this architecture alone, as in `sm_90a`, and for its family, as in `sm_100f`.
const EXACT: u64 = 0x10_0000;
const FAMILY: u64 = 0x20_0000;
/// Texts have this many bytes together at most: more are no kernels'.
const TEXT_BYTES_MAX: usize = 256 << 20;

/// PTX for one architecture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EmbeddedPtx {
    /// The architecture that it was compiled for, as in `compute_90`.
    pub architecture: u32,
    /// Which GPUs run it.
    pub reach: Reach,
    /// The text.
    pub text: Vec<u8>,
}

/// Which GPUs run PTX.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// Those of its architecture and of later ones.
    Later,
    /// Those of its architecture alone (`sm_90a`).
    Exact,
    /// Those of its architecture and of later ones with the same first digits (`sm_100f`).
    Family,
}

/// A fat binary that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FatBinaryError {
    /// It ends within an entry, or an entry's sizes cannot be.
    #[error("byte {at}: the fat binary is cut off or damaged; build the file again")]
    Damaged {
        /// Where in the file.
        at: usize,
    },
    /// Its text cannot be decompressed.
    #[error(
        "byte {at}: PTX that cannot be decompressed ({reason}); build the file again, with `--compress-mode=none` if that fails"
    )]
    Compressed {
        /// Where in the file.
        at: usize,
        /// Why.
        reason: String,
    },
}

/// Whether these are a program, a library, an object or a fat binary, and no text.
#[must_use]
pub fn is_binary(bytes: &[u8]) -> bool {
    [&MAGIC[..4], b"\x7fELF", b"!<arch>\n"]
        .iter()
        .any(|magic| bytes.starts_with(magic))
}

/// The PTX in each fat binary of a file that has some, in the file's order.
///
/// # Errors
/// [`FatBinaryError`], with the place in the file.
pub fn embedded(bytes: &[u8]) -> Result<Vec<Vec<EmbeddedPtx>>, FatBinaryError> {
    let (mut found, mut at, mut left) = (Vec::new(), 0, TEXT_BYTES_MAX);
    while let Some(next) = find(&bytes[at..]) {
        let begin = at + next;
        // The number stands in code that looks for it, too, such as this crate's.
        if begin > 0 && number::<2>(bytes, begin + HEADER_BYTES + 2) != Some(ENTRY_VERSION) {
            at = begin + 1;
            continue;
        }
        let size = number::<8>(bytes, begin + 8).ok_or(FatBinaryError::Damaged { at: begin })?;
        let end = usize::try_from(size)
            .ok()
            .and_then(|size| size.checked_add(begin + HEADER_BYTES))
            .filter(|end| *end <= bytes.len())
            .ok_or(FatBinaryError::Damaged { at: begin })?;
        let texts = entries(bytes, begin + HEADER_BYTES, end, &mut left)?;
        if !texts.is_empty() {
            found.push(texts);
        }
        at = end;
    }
    Ok(found)
}

/// The text of those for a GPU of that architecture: the newest that it runs.
#[must_use]
pub fn best(texts: &[EmbeddedPtx], architecture: u32) -> Option<&EmbeddedPtx> {
    let runs = texts.iter().filter(|text| match text.reach {
        Reach::Later => text.architecture <= architecture,
        Reach::Exact => text.architecture == architecture,
        Reach::Family => text.architecture <= architecture && text.architecture / 10 == architecture / 10,
    });
    runs.max_by_key(|text| text.architecture)
}

fn find(bytes: &[u8]) -> Option<usize> {
    // The magic number stands at multiples of 8 in sections, and anywhere in archives.
    bytes.windows(MAGIC.len()).position(|window| window == MAGIC)
}

/// A number of `N` bytes, the lowest first.
fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<u64> {
    let mut whole = [0; 8];
    whole[..N].copy_from_slice(bytes.get(at..)?.first_chunk::<N>()?);
    Some(u64::from_le_bytes(whole))
}

/// `left`: bytes that texts may have still.
fn entries(bytes: &[u8], mut at: usize, end: usize, left: &mut usize) -> Result<Vec<EmbeddedPtx>, FatBinaryError> {
    let mut texts = Vec::new();
    // What is left behind the last entry is filling.
    while end - at >= ENTRY_BYTES {
        let damaged = FatBinaryError::Damaged { at };
        let field = |offset: usize| number::<4>(bytes, at + offset).and_then(|value| usize::try_from(value).ok());
        let whole = number::<8>(bytes, at + 8).and_then(|value| usize::try_from(value).ok());
        let (Some(kind), Some(header), Some(payload)) = (number::<2>(bytes, at), field(4), whole) else {
            return Err(damaged);
        };
        let next = header
            .checked_add(payload)
            .and_then(|bytes| bytes.checked_add(at))
            .filter(|next| header >= ENTRY_BYTES && *next <= end);
        let Some(next) = next else { return Err(damaged) };
        if kind == u64::from(PTX) {
            let (Some(compressed), Some(architecture)) = (field(16), number::<4>(bytes, at + 28)) else {
                return Err(damaged);
            };
            let (Some(flags), Some(length)) = (number::<8>(bytes, at + 40), number::<8>(bytes, at + 56)) else {
                return Err(damaged);
            };
            let data = &bytes[at + header..next];
            let text = match flags & (LZ4 | ZSTD) {
                0 => data.to_vec(),
                flag => {
                    let data = data.get(..compressed).ok_or(damaged)?;
                    let length = usize::try_from(length).unwrap_or(usize::MAX);
                    let text = decompressed(data, length, *left, flag == ZSTD);
                    text.map_err(|reason| FatBinaryError::Compressed { at, reason })?
                }
            };
            *left = left.saturating_sub(text.len());
            // Filled with zeros.
            let length = text.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
            texts.push(EmbeddedPtx {
                architecture: architecture as u32,
                reach: match flags & (EXACT | FAMILY) {
                    0 => Reach::Later,
                    FAMILY => Reach::Family,
                    _ => Reach::Exact,
                },
                text: text[..length].to_vec(),
            });
        }
        at = next;
    }
    Ok(texts)
}

fn decompressed(data: &[u8], length: usize, left: usize, zstd: bool) -> Result<Vec<u8>, String> {
    if length > left {
        return Err(format!(
            "it says that it has {length} bytes, and texts may have {TEXT_BYTES_MAX} together"
        ));
    }
    if !zstd {
        return lz4_flex::block::decompress(data, length).map_err(|error| error.to_string());
    }
    let decoder = ruzstd::decoding::StreamingDecoder::new(data).map_err(|error| error.to_string())?;
    let mut text = Vec::new();
    let read = decoder.take(length as u64).read_to_end(&mut text);
    read.map_err(|error| error.to_string())?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &[u8] = b".version 8.0\n.target sm_80\n.address_size 64\n";

    /// A fat binary with entries of (kind, architecture, flags, data, bytes of the text).
    fn fat_binary(entries: &[(u16, u32, u64, &[u8], usize)]) -> Vec<u8> {
        let mut body = Vec::new();
        for &(kind, architecture, flags, data, length) in entries {
            let padded = data.len().next_multiple_of(8);
            let mut header = [0; ENTRY_BYTES];
            header[..2].copy_from_slice(&kind.to_le_bytes());
            header[2..4].copy_from_slice(&[1, 1]);
            header[4..8].copy_from_slice(&(ENTRY_BYTES as u32).to_le_bytes());
            header[8..16].copy_from_slice(&(padded as u64).to_le_bytes());
            header[16..20].copy_from_slice(&(data.len() as u32).to_le_bytes());
            header[28..32].copy_from_slice(&architecture.to_le_bytes());
            header[40..48].copy_from_slice(&(flags | 0x11).to_le_bytes());
            header[56..].copy_from_slice(&(length as u64).to_le_bytes());
            body.extend(header);
            body.extend(data);
            body.resize(body.len() + padded - data.len(), 0);
        }
        [&MAGIC[..], &(body.len() as u64).to_le_bytes(), &body].concat()
    }

    #[test]
    fn texts_are_found_wherever_they_are() {
        let packed = lz4_flex::block::compress(TEXT);
        let one = fat_binary(&[
            (1, 80, 0, TEXT, 0),
            (2, 90, 0, b"machine code", 0),
            (1, 90, LZ4, &packed, TEXT.len()),
        ]);
        let file = [
            &b"\x7fELF...."[..],
            &one,
            b"between",
            &fat_binary(&[(2, 90, 0, b"code", 0)]),
            &one,
        ]
        .concat();
        assert!(is_binary(&file) && is_binary(&one) && !is_binary(TEXT));
        let found = embedded(&file).unwrap();
        assert_eq!(found.len(), 2);
        for texts in &found {
            let architectures: Vec<_> = texts.iter().map(|text| text.architecture).collect();
            assert_eq!(architectures, [80, 90]);
            assert!(texts.iter().all(|text| text.text == TEXT));
        }
        let best = |architecture| best(&found[0], architecture).map(|text| text.architecture);
        assert_eq!([best(75), best(86), best(120)], [None, Some(80), Some(90)]);
        assert_eq!(embedded(b"nothing").unwrap(), Vec::<Vec<EmbeddedPtx>>::new());
        // The number that fat binaries begin with, in a program's code.
        let code = [&b"\x7fELF"[..], &MAGIC, &[0xff; 40], &one].concat();
        assert_eq!(embedded(&code).unwrap().len(), 1);
    }

    #[test]
    fn texts_for_one_architecture_are_taken_by_it_alone() {
        let file = fat_binary(&[(1, 80, 0, TEXT, 0), (1, 90, EXACT, TEXT, 0), (1, 100, FAMILY, TEXT, 0)]);
        let found = embedded(&file).unwrap();
        let best = |architecture| best(&found[0], architecture).map(|text| text.architecture);
        assert_eq!(
            [90, 100, 103, 120].map(best),
            [Some(90), Some(100), Some(100), Some(80)]
        );
    }

    #[test]
    fn damage_is_an_error_with_its_place() {
        let packed = lz4_flex::block::compress(TEXT);
        let whole = fat_binary(&[(1, 80, 0, TEXT, 0), (1, 90, LZ4, &packed, TEXT.len())]);
        for length in 16..whole.len() {
            assert!(embedded(&whole[..length]).is_err(), "{length}");
        }
        for at in 0..whole.len() {
            let mut other = whole.clone();
            other[at] ^= 0xff;
            // Whatever it says, it says without a panic.
            let _ = embedded(&other);
        }
        let huge = fat_binary(&[(1, 90, ZSTD, b"(\xb5/\xfd", usize::MAX)]);
        assert!(matches!(
            embedded(&huge),
            Err(FatBinaryError::Compressed { at: 16, .. })
        ));
        let not = fat_binary(&[(1, 90, ZSTD, b"not zstd", 100)]);
        assert!(embedded(&not).unwrap_err().to_string().starts_with("byte 16: "));
    }
}
