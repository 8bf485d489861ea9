//! Metrics over HTTP: one request at a time, each bounded in bytes and time.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// Longest request.
const REQUEST_BYTES_MAX: usize = 4096;
/// Longest time for one request and its answer.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(1);

/// Answers every GET of `/metrics` with what `text` gives, on a thread that ends with the process. Returns the address,
/// which has the port that was chosen for port 0.
///
/// # Errors
/// An address that cannot be listened at, or no thread.
pub fn serve(address: SocketAddr, text: impl Fn() -> String + Send + 'static) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind(address)?;
    let address = listener.local_addr()?;
    let thread = std::thread::Builder::new().name("metrics".to_owned());
    thread.spawn(move || {
        for stream in listener.incoming() {
            match stream {
                // A client that went away or is slow gets nothing; the next one is served.
                Ok(stream) => drop(answer(stream, &text)),
                // Out of descriptors, for example: not to be repeated at full speed.
                Err(_) => std::thread::sleep(Duration::from_millis(100)),
            }
        }
    })?;
    Ok(address)
}

fn answer(mut stream: TcpStream, text: &impl Fn() -> String) -> io::Result<()> {
    let end = Instant::now() + REQUEST_TIME_MAX;
    let mut request = Vec::new();
    while !request.windows(4).any(|bytes| bytes == b"\r\n\r\n") {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() || request.len() >= REQUEST_BYTES_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        stream.set_read_timeout(Some(left))?;
        let mut piece = [0; 1024];
        match stream.read(&mut piece)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            length => request.extend(&piece[..length]),
        }
    }
    let line = request.split(|&byte| byte == b'\r').next().unwrap_or_default();
    let (status, body) = match line {
        _ if line.starts_with(b"GET /metrics ") => ("200 OK", text()),
        _ if line.starts_with(b"GET ") => ("404 Not Found", "the metrics are at /metrics\n".to_owned()),
        _ => ("405 Method Not Allowed", "only GET is answered\n".to_owned()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.set_write_timeout(Some(REQUEST_TIME_MAX))?;
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(address: SocketAddr, request: &[u8]) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        // An answer may come, and the connection end, before all was written.
        let _ = stream.write_all(request);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8(answer).unwrap()
    }

    #[test]
    fn metrics_are_answered_and_nothing_else() {
        let address = serve("127.0.0.1:0".parse().unwrap(), || "clients 3\n".to_owned()).unwrap();
        let good = ask(address, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(
            good.starts_with("HTTP/1.1 200 OK\r\n") && good.ends_with("\r\n\r\nclients 3\n"),
            "{good}"
        );
        assert!(ask(address, b"GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
        assert!(ask(address, b"POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405 "));
        // Neither endless nor silent clients keep the next one out.
        assert_eq!(ask(address, &[b'x'; 10_000]), "");
        let silent = TcpStream::connect(address).unwrap();
        assert!(ask(address, b"GET /metrics HTTP/1.1\r\n\r\n").ends_with("clients 3\n"));
        drop(silent);
    }
}
