package netguard

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Names of the table and chain in the namespace.
const (
	tableName = "workcell"
	chainName = "output"
)

// Kernel constants missing from package unix.
const (
	verdictAccept = 1
	hookLocalOut  = 3
)

// order is the byte order of netlink headers and of values in the kernel's byte order.
var order = binary.NativeEndian

// message is a message in a transaction.
type message struct {
	kind  uint16
	flags uint16
	attrs []byte
}

// Limits for connections from a sandbox. All sandboxes share the host's connection table, by default with 262,144
// entries. The table keeps closed connections for two minutes, so the rate of new connections is limited too.
const (
	maxFlows  = 4096 // open connections
	flowRate  = 100  // new connections per second
	flowBurst = 2000 // burst of new connections
)

// ruleset returns the transaction to replace the table. The first matching rule decides. The order is: loopback, too
// many connections, resolvers, Allow, Deny, closed, and all of IPv6. All other packets are accepted. Without counts,
// connections are not limited.
func ruleset(r Rules, closed []netip.Prefix, counts bool) []message {
	table := str(unix.NFTA_TABLE_NAME, tableName)
	msgs := []message{
		{kind: unix.NFT_MSG_NEWTABLE, flags: unix.NLM_F_CREATE, attrs: table}, // to let the deletion succeed
		{kind: unix.NFT_MSG_DELTABLE, attrs: table},
		{kind: unix.NFT_MSG_NEWTABLE, flags: unix.NLM_F_CREATE, attrs: table},
		{kind: unix.NFT_MSG_NEWCHAIN, flags: unix.NLM_F_CREATE, attrs: join(
			str(unix.NFTA_CHAIN_TABLE, tableName), str(unix.NFTA_CHAIN_NAME, chainName), str(unix.NFTA_CHAIN_TYPE, "filter"),
			num(unix.NFTA_CHAIN_POLICY, verdictAccept),
			nest(unix.NFTA_CHAIN_HOOK, num(unix.NFTA_HOOK_HOOKNUM, hookLocalOut), num(unix.NFTA_HOOK_PRIORITY, 0)),
		)},
		rule(loopback(), accept()),
	}
	if counts {
		msgs = append(msgs, rule(begins(), tooFast(), reject()), rule(begins(), tooMany(), reject()))
	}
	for _, a := range r.Resolvers {
		if !a.Is4() {
			continue
		}
		for _, proto := range []byte{unix.IPPROTO_UDP, unix.IPPROTO_TCP} {
			msgs = append(msgs, rule(to(netip.PrefixFrom(a, 32)), port(proto, 53), accept()))
		}
	}
	for _, p := range r.Allow {
		if p.Addr().Is4() {
			msgs = append(msgs, rule(to(p), accept()))
		}
	}
	for _, p := range append(closed, r.Deny...) {
		if p.Addr().Is4() {
			msgs = append(msgs, rule(to(p), reject()))
		}
	}
	return append(msgs, rule(family(unix.NFPROTO_IPV6), reject()))
}

func rule(exprs ...[]byte) message {
	return message{kind: unix.NFT_MSG_NEWRULE, flags: unix.NLM_F_CREATE | unix.NLM_F_APPEND, attrs: join(
		str(unix.NFTA_RULE_TABLE, tableName), str(unix.NFTA_RULE_CHAIN, chainName),
		nest(unix.NFTA_RULE_EXPRESSIONS, exprs...),
	)}
}

// loopback matches packets to this namespace. The loopback interface has the index 1.
func loopback() []byte {
	return join(meta(unix.NFT_META_OIF), equals(order.AppendUint32(nil, 1)))
}

// begins matches the first packet of a connection, which is not confirmed yet.
func begins() []byte {
	const confirmed = 8 // bit in a connection's status
	return join(expr("ct", num(unix.NFTA_CT_DREG, unix.NFT_REG_1), num(unix.NFTA_CT_KEY, unix.NFT_CT_STATUS)),
		masked(order.AppendUint32(nil, confirmed)), equals(make([]byte, 4)))
}

// tooFast matches packets over the rate.
func tooFast() []byte {
	return expr("limit", num64(unix.NFTA_LIMIT_RATE, flowRate), num64(unix.NFTA_LIMIT_UNIT, 1),
		num(unix.NFTA_LIMIT_BURST, flowBurst), num(unix.NFTA_LIMIT_TYPE, unix.NFT_LIMIT_PKTS),
		num(unix.NFTA_LIMIT_FLAGS, unix.NFT_LIMIT_F_INV))
}

// tooMany matches connections over the maximum number. Package unix does not define the attribute names: count, flags,
// and inverted.
func tooMany() []byte { return expr("connlimit", num(1, maxFlows), num(2, 1)) }

func family(f byte) []byte { return join(meta(unix.NFT_META_NFPROTO), equals([]byte{f})) }

// to matches an IPv4 destination.
func to(p netip.Prefix) []byte {
	p = p.Masked()
	a := p.Addr().As4()
	match := join(family(unix.NFPROTO_IPV4), payload(unix.NFT_PAYLOAD_NETWORK_HEADER, 16, 4))
	if p.Bits() < 32 {
		match = join(match, masked(binary.BigEndian.AppendUint32(nil, ^uint32(0)<<(32-p.Bits()))))
	}
	return join(match, equals(a[:]))
}

// masked applies a mask to the 32 loaded bits.
func masked(mask []byte) []byte {
	return expr("bitwise",
		num(unix.NFTA_BITWISE_SREG, unix.NFT_REG_1), num(unix.NFTA_BITWISE_DREG, unix.NFT_REG_1),
		num(unix.NFTA_BITWISE_LEN, 4), value(unix.NFTA_BITWISE_MASK, mask), value(unix.NFTA_BITWISE_XOR, make([]byte, 4)))
}

// port matches the destination port of a transport protocol.
func port(proto byte, number uint16) []byte {
	return join(meta(unix.NFT_META_L4PROTO), equals([]byte{proto}),
		payload(unix.NFT_PAYLOAD_TRANSPORT_HEADER, 2, 2), equals(binary.BigEndian.AppendUint16(nil, number)))
}

func accept() []byte {
	return expr("immediate", num(unix.NFTA_IMMEDIATE_DREG, unix.NFT_REG_VERDICT),
		nest(unix.NFTA_IMMEDIATE_DATA, nest(unix.NFTA_DATA_VERDICT, num(unix.NFTA_VERDICT_CODE, verdictAccept))))
}

// reject sends the response "administratively prohibited", to avoid timeouts: a connection fails immediately.
func reject() []byte {
	return expr("reject", num(unix.NFTA_REJECT_TYPE, unix.NFT_REJECT_ICMPX_UNREACH),
		attr(unix.NFTA_REJECT_ICMP_CODE, []byte{unix.NFT_REJECT_ICMPX_ADMIN_PROHIBITED}))
}

func meta(key uint32) []byte {
	return expr("meta", num(unix.NFTA_META_DREG, unix.NFT_REG_1), num(unix.NFTA_META_KEY, key))
}

func payload(base, offset, size uint32) []byte {
	return expr("payload", num(unix.NFTA_PAYLOAD_DREG, unix.NFT_REG_1), num(unix.NFTA_PAYLOAD_BASE, base),
		num(unix.NFTA_PAYLOAD_OFFSET, offset), num(unix.NFTA_PAYLOAD_LEN, size))
}

func equals(data []byte) []byte {
	return expr("cmp", num(unix.NFTA_CMP_SREG, unix.NFT_REG_1), num(unix.NFTA_CMP_OP, unix.NFT_CMP_EQ),
		value(unix.NFTA_CMP_DATA, data))
}

func expr(name string, attrs ...[]byte) []byte {
	return nest(unix.NFTA_LIST_ELEM, str(unix.NFTA_EXPR_NAME, name), nest(unix.NFTA_EXPR_DATA, attrs...))
}

func value(kind uint16, data []byte) []byte { return nest(kind, attr(unix.NFTA_DATA_VALUE, data)) }

func num(kind uint16, v uint32) []byte { return attr(kind, binary.BigEndian.AppendUint32(nil, v)) }

func num64(kind uint16, v uint64) []byte { return attr(kind, binary.BigEndian.AppendUint64(nil, v)) }

func str(kind uint16, s string) []byte { return attr(kind, append([]byte(s), 0)) }

func nest(kind uint16, attrs ...[]byte) []byte { return attr(kind|unix.NLA_F_NESTED, join(attrs...)) }

func join(parts ...[]byte) []byte {
	var b []byte
	for _, p := range parts {
		b = append(b, p...)
	}
	return b
}

func attr(kind uint16, data []byte) []byte {
	b := order.AppendUint16(nil, uint16(unix.SizeofNlAttr+len(data)))
	b = order.AppendUint16(b, kind)
	b = append(b, data...)
	for len(b)%unix.NLMSG_ALIGNTO != 0 {
		b = append(b, 0)
	}
	return b
}

// encodeBatch encodes a transaction. It returns the sequence number of the last message with a response.
func encodeBatch(msgs []message) (batch []byte, last uint32) {
	batch = frame(nil, unix.NFNL_MSG_BATCH_BEGIN, 0, 0, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES, nil)
	for _, m := range msgs {
		last++
		batch = frame(batch, unix.NFNL_SUBSYS_NFTABLES<<8|m.kind, unix.NLM_F_ACK|m.flags, last, unix.NFPROTO_INET, 0, m.attrs)
	}
	return frame(batch, unix.NFNL_MSG_BATCH_END, 0, 0, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES, nil), last
}

func frame(b []byte, kind, flags uint16, seq uint32, family byte, resource uint16, attrs []byte) []byte {
	b = order.AppendUint32(b, uint32(unix.NLMSG_HDRLEN+4+len(attrs)))
	b = order.AppendUint16(b, kind)
	b = order.AppendUint16(b, unix.NLM_F_REQUEST|flags)
	b = order.AppendUint32(b, seq)
	b = order.AppendUint32(b, 0)
	b = append(b, family, 0) // the second byte is the version
	b = binary.BigEndian.AppendUint16(b, resource)
	return append(b, attrs...)
}
