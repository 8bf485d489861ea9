//! The secret of memory nodes, out of a file.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::error::CliError;

/// The longest secret, with its line ending: a longer file is the wrong file.
pub const SECRET_BYTES_MAX: usize = 4096;

/// How long a pipe may be silent.
const PIPE_WAIT: Duration = Duration::from_secs(10);

/// Between two looks at a pipe.
const LOOK: Duration = Duration::from_millis(10);

/// The secret in a file or a pipe; its last line ending does not count.
///
/// # Errors
/// A file that cannot be read, is empty, is longer than [`SECRET_BYTES_MAX`] or is no text; a pipe that says nothing.
pub fn read_secret(path: &Path) -> Result<String, CliError> {
    let unread = |source| CliError::SecretFile {
        path: path.to_owned(),
        source,
    };
    let bytes = read_bounded(path).map_err(unread)?;
    if bytes.len() > SECRET_BYTES_MAX {
        return Err(CliError::LongSecret {
            path: path.to_owned(),
            most: SECRET_BYTES_MAX,
        });
    }
    let text = String::from_utf8(bytes).map_err(|error| unread(io::Error::new(io::ErrorKind::InvalidData, error)))?;
    let text = text.strip_suffix('\n').unwrap_or(&text);
    match text.strip_suffix('\r').unwrap_or(text) {
        "" => Err(CliError::EmptySecret { path: path.to_owned() }),
        secret => Ok(secret.to_owned()),
    }
}

/// At most one byte more than a secret may have.
fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    // Else the open waits for a writer of a named pipe, perhaps for ever.
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)?;
    let is_pipe = file.metadata()?.file_type().is_fifo();
    let until = Instant::now() + PIPE_WAIT;
    let mut bytes = Vec::new();
    loop {
        match read_on(&file, &mut bytes) {
            // A pipe that nothing has opened for writing yet is at its end, too.
            Ok(0) if !is_pipe || !bytes.is_empty() => return Ok(bytes),
            Ok(0) => {}
            Ok(_) if bytes.len() > SECRET_BYTES_MAX => return Ok(bytes),
            Ok(_) => continue,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        }
        if Instant::now() > until {
            let text = format!("nothing came, or no end of it, within {} s", PIPE_WAIT.as_secs());
            return Err(io::Error::new(io::ErrorKind::TimedOut, text));
        }
        std::thread::sleep(LOOK);
    }
}

/// Reads once; how many bytes came.
fn read_on(mut file: &File, bytes: &mut Vec<u8>) -> io::Result<usize> {
    let mut piece = [0; 512];
    let length = file.read(&mut piece)?;
    bytes.extend(&piece[..length]);
    Ok(length)
}
