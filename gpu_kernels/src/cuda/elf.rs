//! The little that is read from a GPU binary, an ELF file: the initial bytes of a variable.

/// The initial bytes of variable `name`, if the binary has it and initialises it.
pub(crate) fn variable<'a>(image: &'a [u8], name: &str) -> Option<&'a [u8]> {
    const SYMBOLS: u32 = 2;
    const NO_BYTES: u32 = 8;
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
