//! A Chat Completions endpoint, whichever it is: streams, repairs, retries, and a built-in model for demonstration.
