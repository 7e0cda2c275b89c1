# An agent that answers every prompt by trying to do what its sandbox should not let it do.
say() {
  printf '{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","update":{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"%s\\n"}}}}\n' "$1"
}
try() {
  if (eval "$2") >/dev/null 2>&1; then say "$1: yes"; else say "$1: no"; fi
}
answer() {
  printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$1"
}
while read -r message; do
  id=$(printf '%s' "$message" | sed 's/\("id":[0-9]*\).*/\1/; s/.*"id"://')
  case "$message" in
    *'"method":"initialize"'*)
      answer '{"protocolVersion":1,"agentCapabilities":{"loadSession":true,"mcpCapabilities":{"http":true,"sse":false,"acp":true},"promptCapabilities":{}}}' ;;
    *'"method":"session/new"'*)
      answer '{"sessionId":"s"}' ;;
    *'"method":"session/prompt"'*)
      try 'read this directory' 'cat /project/README.md'
      try 'change this directory' 'echo x > /project/new'
      try 'write into out' 'echo "somebody was here" > /out/note'
      try 'read the passwords of this machine' 'grep . /etc/shadow'
      try 'look into a home' 'ls /root/* /home/*'
      try 'see other processes' 'kill -0 "$PPID"'
      try 'use the network' 'getent hosts example.com'
      answer '{"stopReason":"end_turn"}' ;;
  esac
done
