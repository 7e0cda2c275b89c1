//! Echoes frames on stdio and prints on the side: what the tests of `stdio` talk to.
#![expect(clippy::print_stdout, reason = "the point is that it cannot reach the wire")]

use narrows_link::{Options, stdio};

#[tokio::main(flavor = "current_thread")]
async fn main() -> std::io::Result<()> {
    println!("printed before");
    let mut link = stdio::take(&Options::default())?;
    // Nothing of stdin is left for other readers.
    println!("printed after, {} bytes to read", std::io::read_to_string(std::io::stdin())?.len());
    while let Some(frame) = link.receiver.recv().await {
        println!("printed beside");
        // Whether the peer still listens shows at the next frame.
        let _ = link.sender.send(frame.into_bytes()).await;
    }
    let _ = link.sender.flush().await;
    println!("ended: {}", link.receiver.reason());
    Ok(())
}
