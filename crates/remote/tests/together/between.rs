//! A proxy that reads each request and may respond to it itself.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// A proxy that forwards the requests that it does not answer.
pub(crate) struct Between {
    pub(crate) address: SocketAddr,
    /// The next responses, each with a text that identifies the request it is for.
    said: Arc<Mutex<Vec<(&'static str, String)>>>,
}

impl Between {
    pub(crate) async fn start(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let said = Arc::new(Mutex::new(Vec::new()));
        let saying = Arc::clone(&said);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(one(client, server, Arc::clone(&saying)));
            }
        });
        Self { address, said }
    }

    /// Answers the next request that contains `part` with a status, further headers and a body.
    pub(crate) fn respond(&self, part: &'static str, status: &str, body: &str) {
        let length = body.len();
        let answer =
            format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}");
        self.said.lock().unwrap().push((part, answer));
    }

    /// Returns the number of responses that were not used yet.
    pub(crate) fn left(&self) -> usize {
        self.said.lock().unwrap().len()
    }
}

async fn one(client: TcpStream, server: SocketAddr, said: Arc<Mutex<Vec<(&str, String)>>>) -> Option<()> {
    let mut client = BufReader::new(client);
    let (mut request, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        if client.read_line(&mut line).await.ok()? == 0 {
            return None;
        }
        match line.trim_end().to_ascii_lowercase().split_once(": ") {
            Some(("content-length", value)) => length = value.parse().unwrap(),
            None if line.trim_end().is_empty() => break,
            _ => {}
        }
        request.push_str(&line);
    }
    // One request per socket, so that the proxy sees each.
    request.push_str("connection: close\r\n\r\n");
    let mut body = vec![0; length];
    client.read_exact(&mut body).await.ok()?;
    request.push_str(std::str::from_utf8(&body).unwrap());
    let answer = {
        let mut said = said.lock().unwrap();
        let place = said.iter().position(|(part, _)| request.contains(part));
        place.map(|place| said.remove(place).1)
    };
    if let Some(answer) = answer {
        return client.write_all(answer.as_bytes()).await.ok();
    }
    let mut server = TcpStream::connect(server).await.ok()?;
    server.write_all(request.as_bytes()).await.ok()?;
    tokio::io::copy_bidirectional(&mut client, &mut server).await.ok().map(drop)
}
