//! An agent built on the official SDK, for the tests to run narrows against.

#[tokio::main(flavor = "current_thread")]
async fn main() {
    narrows_testkit::sdk::agent_on_stdio().await;
}
