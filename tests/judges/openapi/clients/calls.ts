// Calls through the client that hey-api made; prints what came back. The types are checked before it runs.

import {
    clockTicks,
    failAsTold,
    oddReposGetGet,
    plainMaybe,
    plainShape,
    plainSum,
    shopAdd,
    shopAddGet,
    shopFindGet,
    shopGrow,
    shopMe,
    shopNothing,
    shopOrder,
    shopPhoto,
    shopRename,
    type Cat,
    type Dog,
    type Order,
    type Problem,
    type Tree,
} from './client/index.ts';
import { client } from './client/client.gen.ts';

declare const process: { argv: string[] };

const [address, token] = process.argv.slice(2) as [string, string];
client.setConfig({ baseUrl: address, auth: ({ type }) => (type === 'http' ? token : undefined) });

async function data<T>(call: Promise<{ data?: T; error?: unknown }>): Promise<T> {
    const { data, error } = await call;
    if (data === undefined) throw new Error(JSON.stringify(error));
    return data;
}

const tree: Tree = await data(shopGrow({ body: { tree: { value: 1, children: [{ value: 0, children: [] }] } } }));
const order: Order = await data(
    shopOrder({
        body: {
            order: {
                id: '5a3f1c52-7d0e-4f2b-9c7b-1f0a2c9c4b11',
                pet: { name: 'tom', kind: 'cat' },
                when: '2024-02-29',
                photo: 'AAH+/w==',
                places: [[1, 2.5]],
                labels: { a: 'b' },
            },
        },
    }),
);
const renamed = async (pet: Cat | Dog): Promise<Cat | Dog> => data(shopRename({ body: { pet, name: 'new' } }));
// It is bytes, and what is promised beside them, base64 text in JSON, is what hey-api takes for the type.
const photo = (await data(shopPhoto({ body: { size: 4 } }))) as unknown as Blob;

const failed = await failAsTold({ body: { code: 'RATE_LIMITED' } });
const problem: Problem | undefined = failed.error;
const denied = await shopMe({ auth: undefined });

const ticks: unknown[] = [];
const { stream } = await clockTicks({ body: { count: 2 } });
for await (const tick of stream) ticks.push(tick);

console.log(
    JSON.stringify({
        query: await data<number>(shopAddGet({ query: { a: 40 } })),
        'query by post': await data<number>(shopAdd({ body: { a: 40, b: 1 } })),
        list: await data<Array<Cat | Dog>>(
            shopFindGet({ query: { name: 'rex', colours: ['red', 'blue'], kind: 'dog' } }),
        ),
        mutation: tree,
        order,
        union: [await renamed({ name: 'tom', lives: 3 }), await renamed({ name: 'rex', tricks: ['sit'], kind: 'dog' })],
        shape: await data(plainShape({ body: { round: true, radius: 1.5 } })),
        whole: await data<number>(plainSum({ body: [1, 2, 3] })),
        maybe: (await plainMaybe({ body: null })).data,
        nothing: (await shopNothing()).data,
        bytes: [...new Uint8Array(await photo.arrayBuffer())],
        odd: await data<string>(oddReposGetGet({ query: { self_: 3, from_: 'a&b' } })),
        error: [failed.response?.status, problem?.code, problem?.retryable],
        denied: [denied.error?.status, denied.error?.code],
        ticks,
    }),
);
