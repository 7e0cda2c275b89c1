//! Ed25519 keys, and signatures over canonical JSON.

mod file;

use std::fmt;
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use ring::rand::{SecureRandom, SystemRandom};
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use crate::base58;
use crate::jcs;
use crate::secret::Secret;

pub use file::{KeyFileError, read_public, read_signing, write_new};

const ALGORITHM: &str = "Ed25519";
/// Prefix of an Ed25519 key in a `did:key`.
const MULTICODEC_PREFIX: [u8; 2] = [0xed, 0x01];
/// Bytes before the 32 bytes of the private key in PKCS #8.
const PKCS8_PREFIX: [u8; 16] = [0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20];
/// Bytes before the 32 bytes of the public key in a SubjectPublicKeyInfo.
const SPKI_PREFIX: [u8; 12] = [0x30, 0x2a, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 3, 0x21, 0];

/// An Ed25519 private key. `Debug` does not show it.
pub struct SigningKey {
    pair: Ed25519KeyPair,
    text: Secret,
}

/// An Ed25519 public key. It is displayed as a `did:key`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct PublicKey([u8; 32]);

/// An Ed25519 signature with the key that made it, as documents contain it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Signature {
    /// Signature algorithm, always `Ed25519`.
    pub alg: String,
    pub value: String,
    pub public_key_ref: PublicKey,
}

/// The reason why a key cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    #[error("the system provides no random numbers")]
    Random,
    #[error("the key is not an Ed25519 private key in PEM format")]
    Private,
    #[error("it is not an Ed25519 public key (`did:key:z6Mk…`, or PEM)")]
    Public,
}

/// The reason why a signature is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    /// The signature was made with another key.
    #[error("the signature was made with another key")]
    OtherKey,
    /// The signature is for another content, or is damaged.
    #[error("the signature does not match the content")]
    Wrong,
}

impl SigningKey {
    /// Generates a key.
    pub fn generate() -> Result<Self, KeyError> {
        let mut seed = [0; 32];
        SystemRandom::new().fill(&mut seed).map_err(|_| KeyError::Random)?;
        let body = STANDARD.encode([&PKCS8_PREFIX[..], &seed].concat());
        Self::from_pem(&Secret::new(format!(
            "-----BEGIN PRIVATE KEY-----\n{body}\n-----END PRIVATE KEY-----\n"
        )))
    }

    /// Reads a private key as PKCS #8 in PEM.
    pub fn from_pem(text: &Secret) -> Result<Self, KeyError> {
        let der = pem(text.expose(), "PRIVATE KEY").ok_or(KeyError::Private)?;
        let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(&der).map_err(|_| KeyError::Private)?;
        Ok(Self { pair, text: text.clone() })
    }

    /// Returns the private key as PKCS #8 in PEM.
    pub fn to_pem(&self) -> &Secret {
        &self.text
    }

    /// Returns the public key that belongs to this key.
    pub fn public(&self) -> PublicKey {
        let mut key = [0; 32];
        key.copy_from_slice(self.pair.public_key().as_ref());
        PublicKey(key)
    }

    /// Signs the canonical form of a value.
    pub fn sign(&self, payload: &Value) -> Result<Signature, jcs::TooDeep> {
        let signature = self.pair.sign(&jcs::to_vec(payload)?);
        Ok(Signature {
            alg: ALGORITHM.to_owned(),
            value: URL_SAFE_NO_PAD.encode(signature.as_ref()),
            public_key_ref: self.public(),
        })
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SigningKey({})", self.public())
    }
}

impl PublicKey {
    /// Checks a signature over the canonical form of a value.
    pub fn verify(&self, payload: &Value, signature: &Signature) -> Result<(), SignatureError> {
        if signature.public_key_ref != *self {
            return Err(SignatureError::OtherKey);
        }
        let bytes = URL_SAFE_NO_PAD.decode(&signature.value).map_err(|_| SignatureError::Wrong)?;
        let payload = jcs::to_vec(payload).map_err(|_| SignatureError::Wrong)?;
        if signature.alg != ALGORITHM {
            return Err(SignatureError::Wrong);
        }
        UnparsedPublicKey::new(&ED25519, &self.0).verify(&payload, &bytes).map_err(|_| SignatureError::Wrong)
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "did:key:z{}", base58::encode(&[&MULTICODEC_PREFIX[..], &self.0].concat()))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for PublicKey {
    type Err = KeyError;

    /// Reads a `did:key`, PEM, or the Base64 content of PEM.
    fn from_str(text: &str) -> Result<Self, KeyError> {
        let text = text.trim();
        let bytes = match text.strip_prefix("did:key:z") {
            Some(encoded) => base58::decode(encoded)
                .and_then(|bytes| Some(bytes.strip_prefix(&MULTICODEC_PREFIX)?.to_vec())),
            None => {
                let der = pem(text, "PUBLIC KEY").or_else(|| STANDARD.decode(text).ok());
                der.and_then(|der| Some(der.strip_prefix(&SPKI_PREFIX)?.to_vec()))
            }
        };
        bytes.and_then(|bytes| bytes.try_into().ok()).map(Self).ok_or(KeyError::Public)
    }
}

impl Serialize for PublicKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for PublicKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

fn pem(text: &str, title: &str) -> Option<Vec<u8>> {
    let body = text.trim().strip_prefix(&format!("-----BEGIN {title}-----"))?;
    let body = body.strip_suffix(&format!("-----END {title}-----"))?;
    STANDARD.decode(body.split_ascii_whitespace().collect::<String>()).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The key of the first test vector of RFC 8032.
    fn rfc8032() -> SigningKey {
        let seed = "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60";
        let seed: Vec<u8> = (0..32)
            .map(|at| u8::from_str_radix(&seed[2 * at..2 * at + 2], 16).expect("hexadecimal"))
            .collect();
        let body = STANDARD.encode([&PKCS8_PREFIX[..], &seed].concat());
        let text = format!("-----BEGIN PRIVATE KEY-----\n{body}\n-----END PRIVATE KEY-----\n");
        SigningKey::from_pem(&Secret::new(text)).expect("a key")
    }

    #[test]
    fn the_public_key_of_a_test_vector_is_derived() {
        let expected = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a";
        assert_eq!(crate::draft::hex(&rfc8032().public().0), expected);
        assert_eq!(
            rfc8032().public().to_string(),
            "did:key:z6MktwupdmLXVVqTzCw4i46r4uGyosGXRnR3XjN4Zq7oMMsw"
        );
    }

    #[test]
    fn public_keys_are_read_in_every_form() {
        let key = rfc8032().public();
        let body = STANDARD.encode([&SPKI_PREFIX[..], &key.0].concat());
        assert_eq!(key.to_string().parse(), Ok(key));
        assert_eq!(body.parse(), Ok(key));
        assert_eq!(
            format!("-----BEGIN PUBLIC KEY-----\n{body}\n-----END PUBLIC KEY-----\n").parse(),
            Ok(key)
        );
        for text in ["", "did:key:z6Mk", "did:key:z0", "did:web:a", "AAAA"] {
            assert_eq!(text.parse::<PublicKey>(), Err(KeyError::Public), "{text}");
        }
    }

    #[test]
    fn a_signature_is_of_one_content_by_one_key() {
        let (key, other) = (SigningKey::generate().expect("a key"), SigningKey::generate().expect("a key"));
        let payload = json!({"b": 1, "a": "é"});
        let signature = key.sign(&payload).expect("shallow");
        assert_eq!(key.public().verify(&json!({"a": "é", "b": 1.0}), &signature), Ok(()));
        assert_eq!(key.public().verify(&json!({"a": "é", "b": 2}), &signature), Err(SignatureError::Wrong));
        assert_eq!(other.public().verify(&payload, &signature), Err(SignatureError::OtherKey));
        // The signature names the other key, but was made with this one.
        let claimed = Signature { public_key_ref: other.public(), ..signature.clone() };
        assert_eq!(other.public().verify(&payload, &claimed), Err(SignatureError::Wrong));
        let damaged = Signature { value: signature.value.to_ascii_lowercase(), ..signature };
        assert_eq!(key.public().verify(&payload, &damaged), Err(SignatureError::Wrong));
    }

    #[test]
    fn a_private_key_is_never_displayed() {
        let key = rfc8032();
        assert_eq!(format!("{key:?}"), format!("SigningKey({})", key.public()));
    }
}
