//! Echoes frames on stdio and prints beside them. The tests of `stdio` start this program.
#![expect(clippy::print_stdout, reason = "the point is that it cannot reach the wire")]

use narrows_link::{Options, stdio};

#[tokio::main(flavor = "current_thread")]
async fn main() -> std::io::Result<()> {
    println!("printed before");
    let mut link = stdio::take(&Options::default())?;
    // All input belongs to the link: other readers of stdin get nothing.
    println!("printed after, {} bytes to read", std::io::read_to_string(std::io::stdin())?.len());
    while let Some(frame) = link.receiver.recv().await {
        println!("printed beside");
        // A peer that has left is noticed at the next frame.
        let _ = link.sender.send(frame.into_bytes()).await;
    }
    let _ = link.sender.flush().await;
    println!("ended: {}", link.receiver.reason());
    Ok(())
}
