//! Verifies logs whose chain uses keyed hashes. Verification needs the secret. This crate never writes such
//! logs.

use memchr::memchr;
use ring::hmac;

use super::VerifyProblem;
use super::line::Flaw;
use super::render::Tree;
use crate::secret::Secret;

/// Checks the lines of a log with keyed hashes, in order.
pub(super) struct Legacy {
    key: hmac::Key,
    previous: String,
    pub(super) lines: u64,
}

impl Legacy {
    pub(super) fn new(secret: &Secret) -> Self {
        let key = hmac::Key::new(hmac::HMAC_SHA256, secret.expose().as_bytes());
        Self { key, previous: "0".repeat(64), lines: 0 }
    }

    pub(super) fn last(&self) -> Option<&str> {
        (self.lines > 0).then_some(&self.previous)
    }

    /// Checks complete lines. Returns the number of valid bytes, and the problem of the line after the valid
    /// ones.
    pub(super) fn check(&mut self, bytes: &[u8]) -> (usize, Option<Flaw>) {
        let mut at = 0;
        while let Some(length) = memchr(b'\n', &bytes[at..]) {
            match self.line(&bytes[at..at + length]) {
                Ok(signature) => self.previous = signature,
                Err(flaw) => return (at, Some(flaw)),
            }
            self.lines += 1;
            at += length + 1;
        }
        (at, None)
    }

    fn line(&self, line: &[u8]) -> Result<String, Flaw> {
        let broken = |detail: String| Flaw::new(VerifyProblem::Broken, detail);
        let mut tree: Tree =
            serde_json::from_slice(line).map_err(|error| broken(format!("it is not JSON: {error}")))?;
        let text = |tree: Option<&Tree>| tree.and_then(Tree::text).map(str::to_owned);
        let signature = text(tree.remove("signature").as_ref())
            .ok_or_else(|| broken("its `signature` is missing".into()))?;
        let previous =
            text(tree.get("prevSignature")).ok_or_else(|| broken("its `prevSignature` is missing".into()))?;
        let signed = [previous.as_bytes(), tree.to_string().as_bytes()].concat();
        let tag = unhex(&signature).unwrap_or_default();
        if hmac::verify(&self.key, &signed, &tag).is_err() {
            return Err(Flaw::new(
                VerifyProblem::Tampered,
                "its signature is not that of its content, or the secret is another",
            ));
        }
        if previous != self.previous {
            return Err(broken("its hash does not continue the previous line".into()));
        }
        Ok(signature)
    }
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let lower = text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
    let pairs = text.as_bytes().chunks_exact(2);
    if !lower || !pairs.remainder().is_empty() {
        return None;
    }
    pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}
