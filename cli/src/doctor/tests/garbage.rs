//! Files of a machine that hold anything, or are folders.

use super::machines::Fixture;

#[test]
fn garbage_is_survived() {
    let fixture = Fixture::server();
    let mut files = Vec::new();
    let mut folders = vec![fixture.tree.machine().path("/")];
    while let Some(folder) = folders.pop() {
        for entry in folder.read_dir().expect("a folder").flatten() {
            match entry.file_type().expect("its type") {
                kind if kind.is_dir() => folders.push(entry.path()),
                kind if kind.is_file() => files.push(entry.path()),
                _ => {}
            }
        }
    }
    assert!(files.len() > 30, "{}", files.len());
    let garbage: [&[u8]; 6] = [
        b"",
        b"\xff\xfe\x00\x01",
        b"-1",
        b"99999999999999999999999999999 9 9 9",
        b": : : : \" \" = ; 0x 0xg\n\n\n:",
        b"Max locked memory\nCapEff:\nNVRM version:\nDevice Minor:\n",
    ];
    for words in garbage {
        for file in &files {
            std::fs::write(file, words).expect("a file");
        }
        let report = fixture.report();
        assert!(report.findings.len() > 15);
    }
    // Folders where files were, and each file alone.
    for file in files {
        std::fs::remove_file(&file).expect("a file");
        std::fs::create_dir(&file).expect("a folder");
        fixture.report();
    }
}
