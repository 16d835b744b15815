from __future__ import annotations

import base64

from holdfast import ids
from holdfast.actions.reseal import Resealed, reseal
from holdfast.core.records import Provider
from holdfast.secretbox import SecretBox
from holdfast.store import agents, providers, sealed
from holdfast.store.agents import SealedSecret
from holdfast.store.transaction import Database
from tests.store.world import NOW, add_agent, call, look
from tests.test_secretbox import SEALED_BEFORE

OLD = SecretBox.from_passphrases(["a long passphrase"])
BOTH = SecretBox.from_passphrases(["new", "a long passphrase"])
NEW = SecretBox.from_passphrases(["new"])


def a_provider(api_key: bytes, access_key: bytes | None) -> Provider:
    return Provider(
        id=ids.new("provider"),
        name="mine",
        provider_type="bedrock",
        api_key=sealed.as_text(api_key),
        access_key=None if access_key is None else sealed.as_text(access_key),
        created_us=NOW,
        updated_us=NOW,
    )


async def secret_of(database: Database, agent_id: str) -> SealedSecret:
    [secret] = (await look(database, agents.secrets_of, [agent_id]))[agent_id]
    return secret


async def test_resealing_leaves_nothing_that_needs_the_old_key_and_keeps_the_ids(database: Database) -> None:
    agent, other = await add_agent(database), await add_agent(database)
    before = SealedSecret(ids.new("agent-env"), "CODE", OLD.seal("open sesame"), "of the door")
    await call(database, agents.add_secrets, agent, [before])
    await call(database, agents.add_secrets, other, [SealedSecret(ids.new("agent-env"), "CODE", SEALED_BEFORE, None)])
    await call(database, providers.insert, a_provider(OLD.seal("the secret"), OLD.seal("its id")))

    assert await reseal(database, BOTH) == Resealed(changed=4, unreadable=0)

    after = await secret_of(database, agent)
    assert (after.id, after.key, after.description) == (before.id, before.key, before.description)
    assert NEW.open(after.sealed) == "open sesame"
    assert NEW.open((await secret_of(database, other)).sealed) == "sk-ünïcode"
    [provider] = await look(database, providers.all_not_deleted)
    assert NEW.open(base64.b64decode(provider.api_key)) == "the secret"
    assert NEW.open(base64.b64decode(provider.access_key)) == "its id"
    assert await reseal(database, BOTH) == Resealed(changed=0, unreadable=0)


async def test_what_no_key_opens_is_counted_and_stays_as_it_is(database: Database) -> None:
    agent = await add_agent(database)
    foreign = SecretBox.from_passphrases(["of somebody else"]).seal("text")
    await call(database, agents.add_secrets, agent, [SealedSecret(ids.new("agent-env"), "CODE", foreign, None)])
    await call(database, providers.insert, a_provider(OLD.seal("the secret"), None))
    assert await reseal(database, BOTH) == Resealed(changed=1, unreadable=1)
    assert (await secret_of(database, agent)).sealed == foreign
