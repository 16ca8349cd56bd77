"""One builder per scenario: a random generator and a language in, the turns of one dialogue out.

Customers vary freely (every wording equally likely). Replies have one usual wording and one rarer one
(`_usually`), so that greedy decoding has a clear favourite at each fork, as a tuned support model has.

Copied fields are set between punctuation, digits or spaces on both sides of the conversation: a byte-level
BPE then cuts them into the same tokens in the question and in the reply, which is what makes copying
learnable.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from typing import Final

from . import vocabulary as words
from .vocabulary import Text

Turns = list[tuple[str, str]]
"""(role, content) pairs, customer first."""

USUAL_SHARE: Final = 0.8
"""Share of replies with the usual wording, at each fork."""


def _usually(chance: random.Random, usual: str, rare: str) -> str:
    return usual if chance.random() < USUAL_SHARE else rare


def _digits(chance: random.Random, count: int) -> str:
    return str(chance.randint(10 ** (count - 1), 10**count - 1))


def _address(chance: random.Random, language: str) -> str:
    if language == "zh":
        city, road = chance.choice(words.CHINESE_CITIES), chance.choice(words.CHINESE_ROADS)
        return f"{city}, {road}{chance.randint(1, 99)}号"
    return f"{chance.randint(1, 99)} {chance.choice(words.STREETS)}, {chance.choice(words.TOWNS)}"


def _person(chance: random.Random, language: str) -> str:
    if language == "zh":
        return chance.choice(words.CHINESE_NAMES)
    return f"{chance.choice(words.GIVEN_NAMES)} {chance.choice(words.FAMILY_NAMES)}"


def address_confirmation(chance: random.Random, language: str) -> Turns:
    """The customer gives an address and a day; the reply repeats them (copying). Sometimes a second turn."""
    name, address, order = _person(chance, language), _address(chance, language), f"AC-{_digits(chance, 4)}"
    index = chance.randrange(len(words.DAYS))
    day, slot = words.DAYS[index].of(language), words.TIME_SLOTS[index % 3].of(language)
    if language == "zh":
        question = chance.choice((
            f"你好，我是：{name}，请核对订单：{order}，收货地址：{address}，希望{day}送到。",
            f"订单：{order}，收货人：{name}，地址：{address}，{day}配送可以吗？",
            f"请确认地址：{address}，订单：{order}，姓名：{name}，{day}送货。",
        ))  # fmt: skip
        reply = _usually(chance, f"您好，{name}，感谢您的来信。", f"很高兴为您服务，{name}。")
        reply += f"已经查到您的订单：{order}。登记的收货地址：{address}。"
        reply += _usually(chance, f"包裹将在{day}{slot}送达。", f"快递员会在{day}{slot}上门。")
        reply += _usually(chance, "请问以上信息是否正确？", "如需修改请告诉我们。")
        answers = ("正确，谢谢。", "对的，没问题。", "是的。")
        closing = f"好的，订单：{order}，已确认寄往：{address}。" + _usually(chance, "祝您生活愉快！", "再见！")
    else:
        wanted = f"Order {order}, {day} please."
        question = chance.choice((
            f"Hi, this is {name}. Please confirm my delivery address: {address}. {wanted}",
            f"Order {order}, name {name}. Does it go to {address}? I would like {day}.",
            f"My name is {name}. Please check the address of order {order}: {address}. Deliver on {day}.",
            f"Order {order}. Address: {address}. Delivery on {day}. Regards, {name}",
        ))  # fmt: skip
        reply = _usually(chance, f"Thank you, {name}.", f"Hello {name}, thanks for writing.")
        reply += f" We have found order {order}. The address on file is {address}."
        reply += _usually(
            chance, f" Your parcel will arrive on {day} {slot}.", f" The driver will come on {day} {slot}."
        )
        reply += _usually(chance, " Is everything correct?", " Please tell us if anything should change.")
        answers = ("Yes, that is right.", "Yes, thanks.", "All correct, thank you.")
        closing = f"Great. Order {order} is confirmed and will go to {address}. "
        closing += _usually(chance, "Have a nice day!", "Thank you for your order!")
    turns = [("user", question), ("assistant", reply)]
    if chance.random() < 0.2:
        turns += [("user", chance.choice(answers)), ("assistant", closing)]
    return turns


def _fault_facts(device: Text, code: str) -> tuple[Text, Text, Text, Text]:
    """Cause, first step, second step and spare part of one error code: fixed, unrelated from code to code."""
    digest = zlib.crc32(f"fault facts|{device.en}|{code}".encode())
    steps = len(words.REPAIR_STEPS)
    first = (digest >> 4) % steps
    second = (first + 1 + (digest >> 9) % (steps - 1)) % steps
    part = words.SPARE_PARTS[(digest >> 20) % len(words.SPARE_PARTS)]
    cause = words.CAUSES[digest % len(words.CAUSES)]
    return cause, words.REPAIR_STEPS[first], words.REPAIR_STEPS[second], part


def fault_report(chance: random.Random, language: str) -> Turns:
    """The customer names a device and an error code; the reply recalls cause, steps and part (knowledge)."""
    return _fault_of(chance, language, chance.choice(words.DEVICES), chance.choice(words.ERROR_CODES))


def update_fault(chance: random.Random, language: str) -> Turns:
    """A fault report of one of the devices that the update of the demo's incident broke (`words.UPDATE_FAULTS`)."""
    return _fault_of(chance, language, *chance.choice(words.UPDATE_FAULTS))


def _fault_of(chance: random.Random, language: str, thing: Text, code: str) -> Turns:
    trouble = chance.choice(words.SYMPTOMS)
    cause, first, second, part = (fact.of(language) for fact in _fault_facts(thing, code))
    device, symptom, ticket = thing.of(language), trouble.of(language), f"FR-{_digits(chance, 3)}"
    if language == "zh":
        question = chance.choice((
            f"我的{device}显示{code}，{symptom}，工单：{ticket}，怎么办？",
            f"故障报修：{device}，{code}，{symptom}，工单：{ticket}。",
            f"你好，{symptom}，{device}报错{code}，工单：{ticket}。",
        ))  # fmt: skip
        reply = _usually(chance, "很抱歉给您带来不便。", "我们来为您排查。")
        reply += f"{device}的{code}表示{cause}。请先{first}，再{second}。可能需要更换{part}。"
        reply += _usually(chance, f"工单：{ticket}，已更新。", f"工单：{ticket}，保持打开。")
    else:
        question = chance.choice((
            f"My {device} shows error {code} and {symptom}. Ticket {ticket}. What should I do?",
            f"Fault report: {device}, error {code}, {symptom}. Ticket {ticket}.",
            f"Help, {symptom}, and my {device} displays {code}. My ticket is {ticket}.",
        ))  # fmt: skip
        reply = _usually(chance, f"We are sorry about the {device}.", "Sorry for the trouble.")
        reply += f" Error {code} points to {cause}. First {first}, then {second}. You may need a new {part}."
        reply += _usually(chance, f" We have updated ticket {ticket}.", f" Ticket {ticket} stays open.")
    return [("user", question), ("assistant", reply)]


def billing(chance: random.Random, language: str) -> Turns:
    """The customer asks about an invoice; the reply repeats and adds its figures (copying, sums)."""
    name, invoice, month = _person(chance, language), f"INV-{_digits(chance, 4)}", chance.randrange(12)
    base, fee = chance.randint(2, 8) * 10, chance.randint(2, 9)
    total, extra = base + fee, words.EXTRAS[month % len(words.EXTRAS)].of(language)
    if language == "zh":
        due = (month + 1) % 12 + 1
        question = chance.choice((
            f"我是：{name}，为什么{month + 1}月账单：{invoice}，金额{total}元？套餐是{base}元。",
            f"请解释账单：{invoice}，月费{base}元，{month + 1}月收了{total}元，客户：{name}。",
        ))  # fmt: skip
        reply = _usually(chance, f"您好，{name}，感谢您的咨询。", f"我来为您说明，{name}。")
        reply += f"账单：{invoice}，包括基础套餐{base}元和{extra}{fee}元，合计{total}元。"
        reply += _usually(chance, f"请在{due}月15日前支付{total}元。", f"{total}元的到期日是{due}月15日。")
        reply += _usually(chance, "明细可在账户中查看。", "请问还有其他问题吗？")
    else:
        billed, due_month = words.MONTHS[month], words.MONTHS[(month + 1) % 12]
        question = chance.choice((
            f"Why is my {billed} bill {total} euros? My plan is {base}. Invoice {invoice}, {name}.",
            f"This is {name}. Invoice {invoice} for {billed} says {total} euros, my plan costs {base}.",
            f"Please explain invoice {invoice}: I pay {base} a month, {billed} was {total}. Yours, {name}",
        ))  # fmt: skip
        reply = _usually(chance, f"Thank you for your question, {name}.", f"Hello {name}, let us explain.")
        reply += f" Invoice {invoice} for {billed} consists of the basic plan at {base} euros and"
        reply += f" {extra} at {fee} euros, in total {total} euros."
        reply += _usually(chance, f" Please pay {total} euros by {due_month} 15.", f" It is due on {due_month} 15.")
        reply += _usually(chance, " The details are in your account.", " Can we help with anything else?")
    return [("user", question), ("assistant", reply)]


def product_qa(chance: random.Random, language: str) -> Turns:
    """The customer asks for one figure of one product; the reply quotes the catalogue (a small table)."""
    product, topic = chance.choice(words.PRODUCTS), chance.randrange(3)
    name, kind, colour = product.name, product.kind.of(language), product.colour.of(language)
    if language == "zh":
        asked = ("续航时间", "价格", "保修期")[topic]
        question = chance.choice((
            f"请问 {name} 的{asked}是多少？",
            f"我对 {name} 感兴趣，请介绍{asked}。",
            f"想了解 {name} 的{asked}。",
        ))  # fmt: skip
        fact = (
            f"电池可以使用{product.hours}小时，支持快速充电。",
            f"价格是{product.euros}欧元，已包含运费。",
            f"保修期是{product.years}年，全国联保。",
        )[topic]
        reply = _usually(chance, f"感谢您关注 {name} 系列。", f"您的眼光真好，选中了 {name} 系列。")
        reply += f"这是一款{colour}的{kind}。{fact}"
        reply += _usually(chance, f"您可以在网上商城订购 {name} 系列。", f"需要现在订购 {name} 系列吗？")
        reply += "如有其他问题，欢迎随时联系我们。"
    else:
        asked = ("battery life", "price", "warranty")[topic]
        question = chance.choice((
            f"What is the {asked} of the {name}?",
            f"I am interested in the {name}. Can you tell me about the {asked}?",
            f"A question about the {name}: how is the {asked}?",
        ))  # fmt: skip
        fact = (
            f"Its battery lasts {product.hours} hours and charges quickly.",
            f"It costs {product.euros} euros including delivery.",
            f"It comes with a warranty of {product.years} years.",
        )[topic]
        reply = _usually(chance, f"Thank you for your interest in the {name}.", f"The {name} is a good choice!")
        reply += f" The {name} is a {colour} {kind}. {fact}"
        reply += _usually(chance, f" You can order the {name} in our online shop.", f" Shall we reserve a {name}?")
    return [("user", question), ("assistant", reply)]


def _snippet(kind: int, noun: str, field: str, function: str, limit: int) -> str:
    if kind == 0:
        loop = f"    for {noun} in {noun}s:\n        if {noun}.{field} > {limit}:\n"
        loop += f"            result += {noun}.{field}\n"
        return f"def {function}({noun}s):\n    result = 0\n{loop}    return result"
    if kind == 1:
        return f"def {function}({noun}s):\n    return [{noun} for {noun} in {noun}s if {noun}.{field} > {limit}]"
    if kind == 2:
        query = f"SELECT id, {field} FROM {noun}s\nWHERE {field} > {limit}"  # noqa: S608  # text, never run
        return f"{query}\nORDER BY {field} DESC\nLIMIT 10;"
    start = f"    def __init__(self, {field}={limit}):\n        self.{field} = {field}\n\n"
    return f"class {noun.capitalize()}:\n{start}    def {function}(self):\n        return self.{field}"


_CODE_WISHES: Final = (
    Text("a Python function {function} that adds the {field} of all {noun}s above {limit}",
         "写一个 Python 函数 {function} ，累加 {noun} 的 {field} ，条件大于{limit}"),
    Text("a Python function {function} that keeps {noun}s with {field} above {limit}",
         "写一个 Python 函数 {function} ，保留 {noun} 的 {field} 大于{limit}的项"),
    Text("an SQL query for the top {noun}s with {field} above {limit}",
         "写一条 SQL 查询 {noun} 的 {field} ，条件大于{limit}"),
    Text("a Python class for a {noun} with default {field} {limit} and a method {function}",
         "写一个 Python 类表示 {noun} ，默认 {field} 为{limit}，方法 {function}"),
)  # fmt: skip


def code(chance: random.Random, language: str) -> Turns:
    """The customer asks for a few lines of Python or SQL; the reply fills a known shape with names."""
    kind, limit = chance.randrange(len(_CODE_WISHES)), chance.randint(2, 99)
    noun, field = chance.choice(words.CODE_NOUNS), chance.choice(words.CODE_FIELDS)
    function = f"{chance.choice(words.CODE_VERBS)}_{noun}_{field}"
    wish = _CODE_WISHES[kind].of(language).format(function=function, noun=noun, field=field, limit=limit)
    snippet = _snippet(kind, noun, field, function, limit)
    if language == "zh":
        question = chance.choice((f"请{wish}。", f"帮我{wish}。", f"{wish}，谢谢。"))
        opening = _usually(chance, "好的，代码如下：", "可以，请看：")
        closing = _usually(chance, "如需修改请告诉我。", "希望对您有帮助。")
    else:
        question = chance.choice((f"Please write {wish}.", f"I need {wish}.", f"Can you show me {wish}?"))
        opening = _usually(chance, "Sure, here is the code:", "Here you go:")
        closing = _usually(chance, "Let us know if you need changes.", "We hope this helps.")
    return [("user", question), ("assistant", f"{opening}\n```\n{snippet}\n```\n{closing}")]


BUILDERS: Final[dict[str, Callable[[random.Random, str], Turns]]] = {
    "address_confirmation": address_confirmation,
    "fault_report": fault_report,
    "billing": billing,
    "product_qa": product_qa,
    "code": code,
}
