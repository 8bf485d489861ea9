//! The tables that `gpuvm/kernel_param.cuh` puts into a compiled module: one for each kernel, a row for each parameter.

use std::ffi::CStr;

use crate::api::{ParamInfo, ParamKind};

/// Row count and size of a row, 4 bytes each.
pub const HEADER_BYTES: usize = 8;
/// `gpuvm_param_row`: seven words and a name.
const ROW_BYTES: usize = 7 * 4 + 196;
/// Most parameters a kernel's table may claim; CUDA's parameter space has room for no more.
const PARAMS_MAX: u32 = 4096;

/// Bytes of a table that starts with `header`.
pub fn table_bytes(header: [u32; 2]) -> Result<usize, String> {
    let [count, row_bytes] = header;
    if count > PARAMS_MAX || row_bytes as usize != ROW_BYTES {
        return Err(format!(
            "the parameter table has another layout: {count} rows of {row_bytes} bytes"
        ));
    }
    Ok(HEADER_BYTES + count as usize * ROW_BYTES)
}

/// The parameters that the table at the start of `table` describes.
pub fn parse(table: &[u8]) -> Result<Vec<ParamInfo>, String> {
    let short = || format!("the parameter table is cut off after {} bytes", table.len());
    let header = [word(table, 0).ok_or_else(short)?, word(table, 1).ok_or_else(short)?];
    let rows = table.get(HEADER_BYTES..table_bytes(header)?).ok_or_else(short)?;
    Ok(rows.chunks_exact(ROW_BYTES).map(describe).collect())
}

fn word(bytes: &[u8], index: usize) -> Option<u32> {
    let bytes = bytes.get(index * 4..index * 4 + 4)?;
    Some(u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
}

fn scalar(class: u32) -> ParamKind {
    match class {
        1 => ParamKind::Signed,
        2 => ParamKind::Unsigned,
        3 => ParamKind::Float,
        _ => ParamKind::Other,
    }
}

/// Words in the order of `gpuvm_param_row`.
fn describe(row: &[u8]) -> ParamInfo {
    let field = |index| word(row, index).unwrap_or_default();
    let kind = match field(2) {
        1 => ParamKind::Pointer,
        2 => ParamKind::PagedArray,
        3 => ParamKind::PagedArrayConst,
        4 => ParamKind::Broadcast,
        5 => ParamKind::BroadcastConst,
        _ => scalar(field(3)),
    };
    let type_name = CStr::from_bytes_until_nul(row.get(28..).unwrap_or_default());
    ParamInfo {
        bytes: field(0),
        align: field(1),
        kind,
        element_bytes: field(4),
        element_kind: scalar(field(6)),
        element_align: field(5),
        type_name: type_name
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(rows: &[([u32; 7], &str)]) -> Vec<u8> {
        let mut bytes = [rows.len() as u32, ROW_BYTES as u32].map(u32::to_ne_bytes).concat();
        for (words, name) in rows {
            bytes.extend(words.map(u32::to_ne_bytes).concat());
            let mut text = name.as_bytes().to_vec();
            text.resize(196, 0);
            bytes.extend(text);
        }
        bytes
    }

    #[test]
    fn rows_become_parameters() {
        let bytes = table(&[
            ([48, 16, 2, 0, 4, 4, 3], "gpuvm::array<float>"),
            ([4, 4, 0, 1, 0, 0, 0], "int"),
        ]);
        let params = parse(&bytes).expect("a table");
        assert_eq!(params[0].kind, ParamKind::PagedArray);
        assert_eq!((params[0].element_bytes, params[0].element_align), (4, 4));
        assert_eq!(params[0].element_kind, ParamKind::Float);
        assert_eq!(
            (params[1].kind, params[1].type_name.as_str()),
            (ParamKind::Signed, "int")
        );
    }

    #[test]
    fn what_is_no_table_is_refused() {
        let bytes = table(&[([4, 4, 0, 1, 0, 0, 0], "int")]);
        for cut in [0, 7, 8, bytes.len() - 1] {
            assert!(parse(&bytes[..cut]).is_err(), "{cut} bytes");
        }
        let mut other = bytes.clone();
        other[4] ^= 4;
        assert!(parse(&other).is_err());
        other = bytes;
        other[2] = 0xff;
        assert!(parse(&other).is_err());
    }
}
