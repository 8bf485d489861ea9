//! Writes the archive that the kernel unpacks as its first file system: "newc" cpio, as the kernel's
//! Documentation/driver-api/early-userspace/buffer-format.rst gives it.

/// An archive under construction.
pub(crate) struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

impl Archive {
    pub(crate) fn new() -> Self {
        Self {
            bytes: Vec::new(),
            entries: 0,
        }
    }

    /// Adds a folder; its parent comes first.
    pub(crate) fn folder(&mut self, path: &str) -> &mut Self {
        self.entry(path, 0o40755, &[])
    }

    /// Adds a file with permissions such as 0o644.
    pub(crate) fn file(&mut self, path: &str, permissions: u32, content: &[u8]) -> &mut Self {
        self.entry(path, 0o100_000 | permissions, content)
    }

    /// Ends the archive. Archives may be joined end to end.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }

    fn entry(&mut self, path: &str, mode: u32, content: &[u8]) -> &mut Self {
        self.entries += 1;
        let size = u32::try_from(content.len()).expect("files of an initramfs are small");
        let name_size = u32::try_from(path.len() + 1).expect("so are their names");
        let links = if mode & 0o40000 == 0 { 1 } else { 2 };
        // inode, mode, user, group, links, time, size, device (2), device of a node (2), length of the name, checksum
        let fields = [self.entries, mode, 0, 0, links, 0, size, 0, 0, 0, 0, name_size, 0];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(path.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
        self
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_has_the_documented_bytes() {
        let mut archive = Archive::new();
        archive.folder("d").file("d/f", 0o644, b"hello");
        let bytes = archive.finish();
        let text = String::from_utf8(bytes.clone()).unwrap();
        assert!(text.starts_with(
            "070701\
            00000001000041ed000000000000000000000002000000000000000000000000000000000000000000000000\
            0000000200000000d\0"
        ));
        // A header of 110 bytes and a name of 2 end at 112; the next entry begins there.
        assert_eq!(&bytes[112..118], b"070701");
        assert_eq!(&bytes[112 + 14..112 + 22], b"000081a4");
        // 112 + 110 + 4 is 226, padded to 228.
        assert_eq!(&bytes[228..236], b"hello\0\0\0");
        assert_eq!(bytes.len() % 4, 0);
        assert!(text.contains("TRAILER!!!"));
    }
}
