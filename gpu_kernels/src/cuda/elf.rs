//! The little that is read from a GPU binary, an ELF file: the initial bytes of a variable, and whether all of it is there.

/// Section kind: it has no bytes in the file.
const NO_BYTES: u32 = 8;

/// Whether the binary has all sections and segments that its tables name.
pub(crate) fn is_whole(image: &[u8]) -> bool {
    // Fields of the header: where a table is, bytes of an entry, entries. Of an entry: where its bytes are, how many.
    let fits = |table: usize, (size, count): (usize, usize), (start, bytes): (usize, usize), kind: Option<usize>| {
        let (table, size, count) = (word64(image, table)?, word16(image, size)?, word16(image, count)?);
        (0..u64::from(count))
            .map(|index| {
                let at = usize::try_from(table.checked_add(index.checked_mul(size.into())?)?).ok()?;
                let entry = image.get(at..at.checked_add(size.into())?)?;
                let end = word64(entry, start)?.checked_add(word64(entry, bytes)?)?;
                let is_empty = kind.is_some_and(|kind| word32(entry, kind) == Some(NO_BYTES));
                (is_empty || end <= image.len() as u64).then_some(())
            })
            .collect::<Option<()>>()
    };
    let is_64_bit = image.get(..6) == Some(b"\x7fELF\x02\x01");
    let sections = || fits(0x28, (0x3a, 0x3c), (24, 32), Some(4));
    let segments = || fits(0x20, (0x36, 0x38), (8, 32), None);
    is_64_bit && sections().is_some() && segments().is_some()
}

/// The initial bytes of variable `name`, if the binary has it and initialises it.
pub(crate) fn variable<'a>(image: &'a [u8], name: &str) -> Option<&'a [u8]> {
    const SYMBOLS: u32 = 2;
    if image.get(..5)? != b"\x7fELF\x02" {
        return None;
    }
    let table = word64(image, 0x28)?;
    let count = u64::from(word16(image, 0x3c)?);
    let section = |index: u64| {
        let at = usize::try_from(table.checked_add(index.checked_mul(64)?)?).ok()?;
        let header = image.get(at..at.checked_add(64)?)?;
        let kind = word32(header, 4)?;
        let start = usize::try_from(word64(header, 24)?).ok()?;
        let bytes = usize::try_from(word64(header, 32)?).ok()?;
        let body = match kind {
            NO_BYTES => &[][..],
            _ => image.get(start..start.checked_add(bytes)?)?,
        };
        Some((kind, word32(header, 40)?, body))
    };
    for index in 0..count {
        let Some((SYMBOLS, names, symbols)) = section(index) else {
            continue;
        };
        let (_, _, names) = section(u64::from(names))?;
        for symbol in symbols.chunks_exact(24) {
            let own = names.get(word32(symbol, 0)? as usize..)?;
            let end = own.iter().position(|&byte| byte == 0)?;
            if &own[..end] != name.as_bytes() {
                continue;
            }
            let (_, _, body) = section(u64::from(word16(symbol, 6)?))?;
            let start = usize::try_from(word64(symbol, 8)?).ok()?;
            let bytes = usize::try_from(word64(symbol, 16)?).ok()?;
            return body.get(start..start.checked_add(bytes)?);
        }
    }
    None
}

fn word16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn word32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn word64(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}
